"""What a column should learn: three models that stay as they are, are built wider, or grow a column of twice the width.

    python -m benchmarks.columns [--quick] [--json FILE] [--models NAME ...] [--seeds N]

A residual CNN on glyphs that are drawn here, a character transformer on the sources of Python's standard library, and
an MLP with an embedding on a table with label noise. From epoch 1 on the column learns in isolation, by each loss; it
joins two epochs before the end, as the average of both, if it contributes at all (`trial:double@1-2` at price 0). All
players see the same batches; accuracies are of test rows.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tamiyo
from benchmarks.form import parser, publish

PLAYERS = ("never", "built x2", "built x4", "rest", "own", "auto")
COLUMN_LOSSES = ("rest", "own", "auto")


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    """Images `[B, 1, 16, 16]` to logits."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.first, self.wide = ResidualBlock(width), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.second, self.head = ResidualBlock(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.wide(self.first(F.relu(self.norm(self.stem(x))))))
        logits: Tensor = self.head(h.mean((2, 3)))
        return logits


class Transformer(nn.Module):
    """Characters `[B, T]` to logits `[B * T, characters]`."""

    def __init__(self, width: int, characters: int, length: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.embed(x) + self.place, mask=self.mask, is_causal=True))
        return logits.flatten(0, 1)


class TableMLP(nn.Module):
    """Rows `[B, 1 + F]`, whose first entry is a category, to logits."""

    def __init__(self, width: int, features: int, categories: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(categories, 4)
        self.body = nn.Sequential(
            nn.Linear(features + 4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(torch.cat([self.embed(x[:, 0].long()), x[:, 1:]], 1))
        return logits


@dataclass(frozen=True)
class Problem:
    build: Callable[[float], nn.Module]  # by width, in multiples of the small model's
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch: int
    lr: float


def glyphs(rng: np.random.Generator) -> Problem:
    """Twenty shapes of strokes, moved, turned, scaled and covered by noise and by strokes of others."""
    classes, size = 20, 16
    strokes = np.random.default_rng(5).uniform(-1, 1, (classes, 4, 2, 2))  # the same in every run
    grid = np.stack(np.meshgrid(*[np.linspace(-1.6, 1.6, size)] * 2), -1)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = rng.integers(classes, size=count)
        angle, scale = rng.normal(0, 0.35, count), rng.uniform(0.7, 1.2, count)
        turn = scale[:, None, None] * np.moveaxis(
            np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]), -1, 0
        )
        others = strokes[rng.integers(classes, size=count), :1]
        lines = np.concatenate([strokes[labels], others + rng.normal(0, 0.5, (count, 1, 1, 2))], 1)
        ends = np.einsum("nab,nseb->nsea", turn, lines) + rng.normal(0, 0.15, (count, 1, 1, 2))
        image = np.zeros((count, size, size))
        for s in range(ends.shape[1]):
            a, b = ends[:, s, 0][:, None, None], ends[:, s, 1][:, None, None]
            along = ((grid - a) * (b - a)).sum(-1) / ((b - a) ** 2).sum(-1)
            away = ((grid - a - along.clip(0, 1)[..., None] * (b - a)) ** 2).sum(-1)
            image = np.maximum(image, np.exp(-away / 0.02))
        image += rng.normal(0, 0.25, image.shape)
        return torch.tensor(image[:, None], dtype=torch.float32), torch.tensor(labels)

    return Problem(lambda k: ResNet(int(8 * k), classes), draw(2500), draw(500), draw(2000), 64, 1e-2)


def characters(rng: np.random.Generator) -> Problem:
    """Pieces of the standard library's sources."""
    length, sources = 48, sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:80]
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in sources)
    known = {c: i + 1 for i, c in enumerate(sorted({c for c in text if c.isascii()}))}
    codes = np.array([known.get(c, 0) for c in text])

    def draw(count: int, part: slice) -> tuple[Tensor, Tensor]:
        piece = codes[int(len(codes) * part.start) : int(len(codes) * part.stop)]
        starts = rng.integers(len(piece) - length - 1, size=count)
        x = torch.tensor(np.stack([piece[s : s + length + 1] for s in starts]))
        return x[:, :-1], x[:, 1:].flatten().view(count, length)

    def build(k: float) -> nn.Module:
        return Transformer(int(24 * k), len(known) + 1, length)

    return Problem(
        build, draw(1600, slice(0.0, 0.9)), draw(80, slice(0.9, 0.95)), draw(300, slice(0.95, 1.0)), 32, 3e-3
    )


def table(rng: np.random.Generator) -> Problem:
    """Five grades of a smooth function of eight numbers and a category, one grade in five of which is drawn anew."""
    features, categories, classes = 8, 12, 5
    of = np.random.default_rng(7)  # the same in every run
    inner, shift, outer = of.normal(size=(categories, features, 12)), of.normal(size=12), of.normal(size=12)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        category, x = rng.integers(categories, size=count), rng.normal(size=(count, features))
        value = np.tanh(np.einsum("nf,nfh->nh", x, inner[category]) * 0.5 + shift) @ outer
        grades = np.searchsorted(np.array([-2.5, -0.8, 0.8, 2.5]), value)
        anew = rng.random(count) < 0.2
        grades[anew] = rng.integers(classes, size=int(anew.sum()))
        rows = np.concatenate([category[:, None], x], 1)
        return torch.tensor(rows, dtype=torch.float32), torch.tensor(grades)

    def build(k: float) -> nn.Module:
        return TableMLP(int(32 * k), features, categories, classes)

    return Problem(build, draw(8000), draw(1000), draw(4000), 64, 1e-2)


PROBLEMS = {"resnet": glyphs, "transformer": characters, "mlp": table}


def play(problem: Problem, player: str, seed: int, epochs: int) -> dict[str, Any]:
    """Train one player; return its test accuracy in points, its parameters and the last ratio of the losses."""
    torch.manual_seed(seed)
    model = problem.build({"built x2": 2.0, "built x4": 4.0}.get(player, 1.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=problem.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    def measure(x: Tensor, y: Tensor) -> tuple[float, float]:
        model.eval()
        with torch.no_grad():
            logits = model(x)
        return float(F.cross_entropy(logits, y.flatten())), float((logits.argmax(-1) == y.flatten()).float().mean())

    grower = None
    if player in COLUMN_LOSSES:
        grower = tamiyo.GrowthController(
            model,
            optimizer=optimizer,
            columns=tamiyo.Column(problem.build, count=1, loss=player),
            policy="trial:double@1-2",
            horizon_epochs=epochs,
            points_per_doubling=0.0,
            evaluate=lambda: measure(*problem.val)[1],
            seed=seed,
        )
        grower.step(*measure(*problem.val))
    order, (x, y), started, ratio = np.random.default_rng(seed), problem.train, time.process_time(), np.nan
    for _ in range(epochs):
        model.train()
        losses = []
        for rows in torch.from_numpy(order.permutation(len(x))).split(problem.batch):

            def loss_of(rows: Tensor = rows) -> Tensor:
                return F.cross_entropy(model(x[rows]), y[rows].flatten())

            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            if grower is not None:
                grower.shadow(loss_of)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        val_loss, accuracy = measure(*problem.val)
        ratio = float(np.mean(losses)) / val_loss
        if grower is not None:
            grower.step(val_loss, accuracy, float(np.mean(losses)))
    used = time.process_time() - started
    grown = model if grower is None else grower.export()
    model = grown
    params = sum(p.numel() for p in grown.parameters())
    return {"accuracy": 100.0 * measure(*problem.test)[1], "params": params, "ratio": ratio, "cpu_s": used}


def main() -> None:
    known = parser("columns", __doc__.splitlines()[0])
    known.add_argument("--models", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), help="which of them")
    known.add_argument("--seeds", type=int, default=3, help="runs of each player")
    options = known.parse_args()
    models, seeds, epochs = (["mlp"], 1, 3) if options.quick else (options.models, options.seeds, 16)
    rows = []
    for name in models:
        for seed in range(seeds):
            problem = PROBLEMS[name](np.random.default_rng(seed))
            for player in PLAYERS:
                row: dict[str, Any] = {"model": name, "player": player, "seed": seed}
                rows.append(row | play(problem, player, seed, epochs))
                print(
                    *(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True
                )
    publish(rows, [], options.json)


if __name__ == "__main__":
    main()
