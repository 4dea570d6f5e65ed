"""A character-level transformer on the sources of Python's standard library that may grow columns while it trains.

Run: python examples/practical/char_transformer.py --width 48

The lines marked `# +` were added to an ordinary training script; without them the script trains as before, and so it
does with `--policy never`.
"""

import sysconfig
from argparse import ArgumentParser
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tamiyo  # +

MODULES = (
    "argparse ast bisect calendar codecs configparser contextlib copy csv dataclasses decimal difflib dis doctest enum"
    " fractions ftplib functools gettext heapq imaplib inspect ipaddress locale mailbox optparse pickle pickletools"
    " platform pstats pydoc random shutil smtplib socket statistics subprocess tarfile tempfile textwrap threading"
    " trace traceback turtle typing uuid warnings weakref zipfile"
)
CHARACTERS = [chr(i) for i in (10, *range(32, 127))]  # others are left out
CONTEXT, BATCH, STEPS = 48, 32, 50


class Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(len(CHARACTERS), width), nn.Embedding(CONTEXT, width)
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in "12"]
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARACTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.place.weight
        for layer in self.layers:
            h = layer(h, self.mask, is_causal=True)
        logits: Tensor = self.head(self.norm(h))
        return logits


parser = ArgumentParser(description="Train a character-level transformer.")
parser.add_argument("--width", type=int, default=48, help="features of a character, a multiple of 8")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=16)
parser.add_argument("--steps", type=int, default=STEPS, help="minibatches of an epoch")
parser.add_argument("--policy", help="a rule, a checkpoint or a server (default: a trial of two columns)")  # +
parser.add_argument("--price", type=float, default=1.0, help="points that a doubling must be worth")  # +
parser.add_argument("--compute-price", type=float, default=0.0, help="the same of training compute")  # +
options = parser.parse_args()

torch.manual_seed(options.seed)
folder = Path(sysconfig.get_path("stdlib"))
files = [folder / f"{name}.py" for name in MODULES.split()]
text = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
index = {character: i for i, character in enumerate(CHARACTERS)}
tokens = torch.tensor([index[c] for c in text if c in index])
tokens = tokens[: len(tokens) // 10_000 * 10_000].view(-1, 10, 1000)  # ten pages, and so on
train, val, test = (pages.flatten() for pages in tokens.split([8, 1, 1], 1))

model = Transformer(options.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
columns = tamiyo.Column(lambda scale: Transformer(4 * max(1, int(options.width * scale / 4))))  # +
rows_of_epoch = options.steps * BATCH  # +
task = {"horizon_epochs": options.epochs, "num_classes": len(CHARACTERS), "train_rows": rows_of_epoch}  # +
task |= {"evaluate": lambda: evaluate(val)[1], "val_rows": 256}  # +
task |= {"points_per_doubling": options.price, "points_per_compute_doubling": options.compute_price}  # +
grower = tamiyo.GrowthController(model, optimizer=optimizer, columns=columns, policy=options.policy, **task)  # +


def loss_of(rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def evaluate(text: Tensor) -> tuple[float, float]:
    """Return loss and accuracy of the next character in 256 evenly spaced places."""
    model.eval()
    rows = text.unfold(0, CONTEXT + 1, (len(text) - CONTEXT - 1) // 255)[:256]
    logits = model(rows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    return loss.item(), (logits.argmax(-1) == rows[:, 1:]).float().mean().item()


grower.step(*evaluate(val))  # +
history = []
for epoch in range(options.epochs):
    model.train()
    losses = []
    for _ in range(options.steps):
        rows = train[torch.randint(len(train) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad()
        loss = loss_of(rows)
        loss.backward()
        grower.shadow(lambda rows=rows: loss_of(rows))  # +
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    val_loss, accuracy = evaluate(val)
    history.append(accuracy)
    print(f"epoch {epoch + 1:2}  loss {val_loss:.3f}  accuracy {accuracy:.1%}")
    decision = grower.step(val_loss, accuracy, sum(losses) / len(losses))  # +
    print(f"          {decision.op} {decision.slot} {decision.reason}")  # +

test_metric = evaluate(test)[1]
model = grower.export()  # +
print(f"test accuracy {test_metric:.1%} with {sum(p.numel() for p in model.parameters())} parameters")
