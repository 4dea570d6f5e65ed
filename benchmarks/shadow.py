"""What growing costs a training loop: a column of twice the width that learns beside a model, or nothing that grows.

    python -m benchmarks.shadow [--quick] [--json FILE]

Loops take turns and count CPU time: the plain one, one with a controller that never grows, and one in whose `shadow` a
column learns by its own loss, or the rest. From the latter the plain loop is subtracted and, for the rest, a forward
pass of the model for each minibatch; what is left is compared with a plain loop over the column's network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tamiyo
from actors.growth.columns.column import ColumnLoss
from benchmarks.form import Target, in_turns, parser, publish, seconds

CLASSES, BATCH, TRIAL = 10, 64, "trial:double@0-2"


@dataclass(frozen=True)
class Model:
    name: str
    build: Callable[[float], nn.Module]  # by scale
    shape: tuple[int, ...]  # of a row


def mlp(width: int) -> nn.Module:
    layers = [nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)]
    return nn.Sequential(*layers)


def cnn(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, width), (width, width), (width, 2 * width), (2 * width, 2 * width)):
        stride = 1 if before == after else 2
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))


MODELS = (
    Model("MLP, 256 units", lambda scale: mlp(int(256 * scale)), (32,)),
    Model("CNN, 16 channels", lambda scale: cnn(int(16 * scale)), (1, 16, 16)),
)


class Loop:
    """A training loop over a few minibatches that stay the same."""

    def __init__(
        self, model: Model, scale: float, minibatches: int, policy: str = "", loss: ColumnLoss | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model = model.build(scale)
        self.batches = [
            (torch.randn(BATCH, *model.shape), torch.randint(CLASSES, (BATCH,))) for _ in range(minibatches)
        ]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.grower: tamiyo.GrowthController | None = None
        if loss is not None:
            self.grower = tamiyo.GrowthController(
                self.model,
                optimizer=self.optimizer,
                columns=tamiyo.Column(model.build, count=1, loss=loss),
                policy=policy,
                horizon_epochs=10_000,
                evaluate=self.evaluate,
            )

    def germinate(self) -> None:
        """Bring a column of twice the width into TRAINING, where it stays."""
        assert self.grower is not None
        for _ in range(4):
            self.grower.step(1.0, 0.5, 1.0)
            self.train()
        if {stage.name for stage in self.grower.stages.values()} != {"TRAINING"}:
            raise RuntimeError(f"the column does not learn: {self.grower.stages}")

    def train(self) -> None:
        """Train on all minibatches once."""
        self.model.train()
        for x, y in self.batches:

            def loss_of(x: Tensor = x, y: Tensor = y) -> Tensor:
                return F.cross_entropy(self.model(x), y)

            self.optimizer.zero_grad()
            loss_of().backward()
            if self.grower is not None:
                self.grower.shadow(loss_of)
            self.optimizer.step()

    def epoch(self) -> None:
        """Train, evaluate and, where there is a controller, let it decide."""
        self.train()
        accuracy = self.evaluate()
        if self.grower is not None:
            self.grower.step(1.0, accuracy, 1.0)

    @torch.no_grad()
    def evaluate(self) -> float:
        self.model.eval()
        x, y = self.batches[0]
        return float((self.model(x).argmax(1) == y).float().mean())

    @torch.no_grad()
    def forward(self) -> None:
        self.model.train()
        for x, _ in self.batches:
            self.model(x)


def measure(model: Model, minibatches: int, rounds: int) -> tuple[dict[str, float], list[Target]]:
    plain, alone = Loop(model, 1.0, minibatches), Loop(model, 2.0, minibatches)
    never = Loop(model, 1.0, minibatches, "never", "own")
    own, rest = Loop(model, 1.0, minibatches, TRIAL, "own"), Loop(model, 1.0, minibatches, TRIAL, "rest")
    for grown in (own, rest):
        grown.germinate()
    sides = {
        "plain": plain.train,
        "epoch": plain.epoch,
        "never": never.epoch,
        "forward": plain.forward,
        "alone": alone.train,
        "own": own.train,
        "rest": rest.train,
    }
    took = in_turns({name: lambda work=work: seconds(work) for name, work in sides.items()}, rounds)
    shares = {
        "never": took["epoch"] / took["never"],
        "own": took["alone"] / (took["own"] - took["plain"]),
        "rest": took["alone"] / (took["rest"] - took["plain"] - took["forward"]),
    }
    goals = {"never": 1 / 1.01, "own": 1 / 1.05, "rest": 1 / 1.05}
    targets = [Target(f"{model.name}: {name}, expected cost over cost", shares[name], goals[name]) for name in goals]
    return {f"{name}, ms a minibatch": 1000 * t / minibatches for name, t in took.items()}, targets


def main() -> None:
    options = parser("shadow", __doc__.splitlines()[0]).parse_args()
    minibatches, rounds = (4, 2) if options.quick else (20, 8)
    rows, targets = [], []
    for model in MODELS:
        row, own = measure(model, minibatches, rounds)
        rows.append({"model": model.name, **row})
        targets += own
    publish(rows, targets, options.json)


if __name__ == "__main__":
    main()
