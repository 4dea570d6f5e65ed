"""A character-level transformer on the sources of Python's standard library that may grow columns while it trains.

Run: python examples/models/char_transformer.py --width 16 --policy fixed-column:double@4

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
    "argparse ast bisect calendar codecs configparser contextlib copy csv dataclasses difflib dis enum fractions"
    " functools gettext heapq inspect ipaddress locale"
)
CHARACTERS = [chr(i) for i in (10, *range(32, 127))]  # others are left out
CONTEXT, BATCH, STEPS = 32, 32, 60


class Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(len(CHARACTERS), width), nn.Embedding(CONTEXT, width)
        layers = [nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in "12"]
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
parser.add_argument("--width", type=int, default=16, help="features of a character, an even number")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--policy", help="a rule, a checkpoint or a server (default: a trial of two columns)")  # +
parser.add_argument("--price", type=float, default=1.0, help="points that a doubling must be worth")  # +
parser.add_argument("--compute-price", type=float, default=0.0, help="the same of training compute")  # +
options = parser.parse_args()

torch.manual_seed(options.seed)
folder = Path(sysconfig.get_path("stdlib"))
text = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES.split())
index = {character: i for i, character in enumerate(CHARACTERS)}
tokens = torch.tensor([index[c] for c in text if c in index])
tokens = tokens[: len(tokens) // 10_000 * 10_000].view(-1, 10, 1000)  # ten pages, and so on
train, val, test = (pages.flatten() for pages in tokens.split([8, 1, 1], 1))

model = Transformer(options.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
columns = tamiyo.Column(lambda scale: Transformer(2 * max(1, int(options.width * scale / 2))))  # +
task = {"horizon_epochs": options.epochs, "num_classes": len(CHARACTERS), "train_rows": len(train) // CONTEXT}  # +
task |= {"evaluate": lambda: evaluate(val)[1], "val_rows": 256}  # +
prices = {"points_per_doubling": options.price, "points_per_compute_doubling": options.compute_price}  # +
config = tamiyo.GrowthConfig(columns=columns, policy=options.policy, **task, **prices)  # +
grower = tamiyo.GrowthController(model, optimizer=optimizer, config=config)  # +


def loss_of(rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def evaluate(text: Tensor) -> tuple[float, float]:
    """Return loss and accuracy of the next character in 256 evenly spaced places."""
    model.eval()
    rows = text.unfold(0, CONTEXT + 1, (len(text) - CONTEXT - 1) // 255)[:256]
    hits = model(rows[:, :-1]).argmax(-1) == rows[:, 1:]
    return loss_of(rows).item(), hits.float().mean().item()


grower.step(*evaluate(val))  # +
for epoch in range(options.epochs):
    model.train()
    losses = []
    for _ in range(STEPS):
        rows = train[torch.randint(len(train) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad()
        loss = loss_of(rows)
        loss.backward()
        grower.shadow(lambda rows=rows: loss_of(rows))  # +
        optimizer.step()
        losses.append(loss.item())
    val_loss, val_accuracy = evaluate(val)
    print(f"epoch {epoch + 1:2}  loss {val_loss:.3f}  accuracy {val_accuracy:.1%}")
    decision = grower.step(val_loss, val_accuracy, sum(losses) / len(losses))  # +
    print(f"          {decision.op} {decision.slot} {decision.reason}")  # +

test_accuracy = evaluate(test)[1]
model = grower.export()  # +
print(f"test accuracy {test_accuracy:.1%} with {sum(p.numel() for p in model.parameters())} parameters")
