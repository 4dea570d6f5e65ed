"""An MLP with embeddings on 54,000 diamonds that may grow columns while it trains: their clarity, or their price.

Run: python examples/practical/mlp_table.py --width 96
     python examples/practical/mlp_table.py --width 96 --task price

The table comes with plotnine (`pip install --no-deps plotnine`, which is not imported). The lines marked `# +` were
added to an ordinary training script; without them the script trains as before, and so it does with `--policy never`.
"""

import csv
from argparse import ArgumentParser
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tamiyo  # +


def read_table(path: Path | None, task: str) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Return categories [rows, C], normalized numbers [rows, N], targets, and how many values each category has."""
    if path is None:
        package = find_spec("plotnine")
        if package is None or not package.submodule_search_locations:
            raise SystemExit("the table comes with plotnine: pip install --no-deps plotnine, or give --data FILE")
        path = Path(package.submodule_search_locations[0]) / "data" / "diamonds.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    codes, sizes = {}, {}
    for name in ("cut", "color", "clarity"):
        known = sorted({row[name] for row in rows})
        codes[name], sizes[name] = torch.tensor([known.index(row[name]) for row in rows]), len(known)
    names = ("carat", "depth", "table", "x", "y", "z")
    numbers = torch.tensor([[float(row[name]) for name in names] for row in rows])
    price = torch.tensor([float(row["price"]) for row in rows]).log()[:, None]
    target = codes.pop("clarity") if task == "clarity" else price
    numbers = torch.cat([numbers, numbers[:, :1].log(), *([price] if task == "clarity" else [])], 1)
    numbers, target = ((v - v.mean(0)) / v.std(0) if v.is_floating_point() else v for v in (numbers, target))
    return torch.stack([*codes.values()], 1), numbers.clamp(-4, 4), target, [sizes[name] for name in codes]


class TableMLP(nn.Module):
    def __init__(self, width: int, sizes: list[int], numbers: int, outputs: int) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        widths = (numbers + 4 * len(sizes), width, width, width)
        layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU())]
        self.body = nn.Sequential(*layers, nn.Linear(width, outputs))

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor:
        embedded = [embed(codes[:, i]) for i, embed in enumerate(self.embed)]
        out: Tensor = self.body(torch.cat([*embedded, numbers], 1))
        return out


parser = ArgumentParser(description="Train an MLP on diamonds.")
parser.add_argument("--width", type=int, default=96, help="units of a hidden layer")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=16)
parser.add_argument("--task", choices=("clarity", "price"), default="clarity", help="classify, or regress")
parser.add_argument("--rows", type=int, default=16_000, help="diamonds to train on")
parser.add_argument("--data", type=Path, help="diamonds.csv (default: that of plotnine)")
parser.add_argument("--policy", help="a rule, a checkpoint or a server (default: a trial of two columns)")  # +
parser.add_argument("--price", type=float, default=1.0, help="points that a doubling must be worth")  # +
parser.add_argument("--compute-price", type=float, default=0.0, help="the same of training compute")  # +
options = parser.parse_args()

torch.manual_seed(options.seed)
codes, numbers, y, sizes = read_table(options.data, options.task)
train, val, test = torch.randperm(len(y))[: 3 * options.rows // 2].tensor_split([options.rows, 9 * options.rows // 8])
classify = options.task == "clarity"


def make(width: int) -> nn.Module:
    return TableMLP(width, sizes, numbers.shape[1], int(y.max()) + 1 if classify else 1)


model = make(options.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
columns = tamiyo.Column(lambda scale: make(int(options.width * scale)))  # +
task = {"num_classes": int(y.max()) + 1} if classify else {"higher_is_better": True}  # +
task |= {"horizon_epochs": options.epochs, "train_rows": len(train)}  # +
task |= {"evaluate": lambda: evaluate(val)[1], "val_rows": len(val)}  # +
task |= {"points_per_doubling": options.price, "points_per_compute_doubling": options.compute_price}  # +
grower = tamiyo.GrowthController(model, optimizer=optimizer, columns=columns, policy=options.policy, **task)  # +
name = "accuracy" if classify else "metric"  # +


def loss_of(rows: Tensor) -> Tensor:
    out = model(codes[rows], numbers[rows])
    return F.cross_entropy(out, y[rows]) if classify else F.mse_loss(out, y[rows])


@torch.no_grad()
def evaluate(rows: Tensor) -> tuple[float, float]:
    """Return loss and accuracy, or loss and R2, at least 0."""
    model.eval()
    out = model(codes[rows], numbers[rows])
    if classify:
        return F.cross_entropy(out, y[rows]).item(), (out.argmax(1) == y[rows]).float().mean().item()
    loss = F.mse_loss(out, y[rows]).item()
    return loss, max(0.0, 1.0 - loss / y[rows].var(correction=0).item())


val_loss, value = evaluate(val)  # +
grower.step(val_loss, **{name: value})  # +
history = []
for epoch in range(options.epochs):
    model.train()
    losses = []
    for rows in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        loss = loss_of(rows)
        loss.backward()
        grower.shadow(lambda rows=rows: loss_of(rows))  # +
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    val_loss, value = evaluate(val)
    history.append(value)
    print(f"epoch {epoch + 1:2}  loss {val_loss:.4f}  {'accuracy' if classify else 'R2'} {value:.2%}")
    decision = grower.step(val_loss, train_loss=sum(losses) / len(losses), **{name: value})  # +
    print(f"          {decision.op} {decision.slot} {decision.reason}")  # +

test_metric = evaluate(test)[1]
model = grower.export()  # +
print(f"test {options.task}: {test_metric:.2%} with {sum(p.numel() for p in model.parameters())} parameters")
