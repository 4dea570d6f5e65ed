"""An MLP on scikit-learn's breast_cancer that may grow columns while it trains.

Run: python examples/models/mlp_breast_cancer.py --width 2 --policy fixed-column:double@3

The lines marked `# +` were added to an ordinary training script; without them the script trains as before, and so it
does with `--policy never`.
"""

from argparse import ArgumentParser

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import tamiyo  # +


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


parser = ArgumentParser(description="Train an MLP on breast_cancer.")
parser.add_argument("--width", type=int, default=2, help="hidden units")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--policy", help="a rule, a checkpoint or a server (default: a trial of two columns)")  # +
parser.add_argument("--price", type=float, default=1.0, help="points that a doubling must be worth")  # +
parser.add_argument("--compute-price", type=float, default=0.0, help="the same of training compute")  # +
options = parser.parse_args()

torch.manual_seed(options.seed)
data = load_breast_cancer()
x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
train, val, test = torch.randperm(len(x)).split([269, 100, 200])
x = (x - x[train].mean(0)) / x[train].std(0)

model = mlp(options.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
columns = tamiyo.Column(lambda scale: mlp(max(1, int(options.width * scale))))  # +
task = {"horizon_epochs": options.epochs, "num_classes": 2, "train_rows": len(train)}  # +
task |= {"evaluate": lambda: evaluate(val)[1], "val_rows": len(val)}  # +
prices = {"points_per_doubling": options.price, "points_per_compute_doubling": options.compute_price}  # +
config = tamiyo.GrowthConfig(columns=columns, policy=options.policy, **task, **prices)  # +
grower = tamiyo.GrowthController(model, optimizer=optimizer, config=config)  # +


@torch.no_grad()
def evaluate(rows: Tensor) -> tuple[float, float]:
    """Return loss and accuracy."""
    model.eval()
    logits = model(x[rows])
    return F.cross_entropy(logits, y[rows]).item(), (logits.argmax(1) == y[rows]).float().mean().item()


grower.step(*evaluate(val))  # +
for epoch in range(options.epochs):
    model.train()
    losses = []
    for rows in train[torch.randperm(len(train))].split(16):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        grower.shadow(lambda rows=rows: F.cross_entropy(model(x[rows]), y[rows]))  # +
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    val_loss, val_accuracy = evaluate(val)
    print(f"epoch {epoch + 1:2}  loss {val_loss:.3f}  accuracy {val_accuracy:.1%}")
    decision = grower.step(val_loss, val_accuracy, sum(losses) / len(losses))  # +
    print(f"          {decision.op} {decision.slot} {decision.reason}")  # +

test_accuracy = evaluate(test)[1]
model = grower.export()  # +
print(f"test accuracy {test_accuracy:.1%} with {sum(p.numel() for p in model.parameters())} parameters")
