"""Tasks: what a host is trained on. Train, validation and test rows are disjoint by construction.

A task family makes a `Task` from a generator that depends on the run and environment seed alone. Bundled data sets
are split once and for all (a fixed permutation), so that no episode of any seed ever trains on a test row; generated
sets are drawn anew for each seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from actors.config import ConfigError


@dataclass(frozen=True)
class Split:
    x: NDArray[np.float32]  # [N, F]
    y: NDArray[np.int64]  # [N]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Task:
    task_id: str
    num_classes: int
    host_width: int
    train: Split
    val: Split
    test: Split

    @property
    def num_features(self) -> int:
        return int(self.train.x.shape[1])

    @property
    def chance_loss(self) -> float:
        """Cross-entropy of the uniform guess, nats."""
        return float(np.log(self.num_classes))


def _standardised(train: Split, val: Split, test: Split) -> tuple[Split, Split, Split]:
    """Features scaled by the training rows' statistics alone."""
    mean, std = train.x.mean(0, dtype=np.float64), train.x.std(0, dtype=np.float64)
    std = np.where(std > 1e-8, std, 1.0)
    scale = [Split(((s.x - mean) / std).astype(np.float32), s.y) for s in (train, val, test)]
    return scale[0], scale[1], scale[2]


def _fixed_split(
    x: NDArray[np.float64], y: NDArray[np.int64], shares: tuple[float, float]
) -> tuple[Split, Split, Split]:
    """Rows permuted once, then cut into train, validation and test by `shares` (train, validation)."""
    order = np.random.default_rng(20240501).permutation(len(y))
    cuts = [int(len(y) * shares[0]), int(len(y) * (shares[0] + shares[1]))]
    parts = [Split(x[rows].astype(np.float32), y[rows].astype(np.int64)) for rows in np.split(order, cuts)]
    return _standardised(parts[0], parts[1], parts[2])


@cache
def _bundled(name: str) -> tuple[Split, Split, Split]:
    from sklearn import datasets

    bunch = {"digits": datasets.load_digits, "wine": datasets.load_wine}[name]()
    return _fixed_split(bunch.data, bunch.target, (0.5, 0.3) if name == "digits" else (0.5, 0.25))


def _digits(rng: np.random.Generator) -> Task:
    return Task("digits", 10, 12, *_bundled("digits"))


def _wine(rng: np.random.Generator) -> Task:
    return Task("wine", 3, 8, *_bundled("wine"))


def _spirals(rng: np.random.Generator, classes: int = 3, rows: int = 512) -> Task:
    """Interleaved spiral arms; turns, noise and rotation vary with the seed."""
    turns, noise, phase = rng.uniform(1.75, 2.25), rng.uniform(0.01, 0.03), rng.uniform(0.0, 2 * np.pi)

    def draw(n: int) -> Split:
        y = rng.integers(0, classes, n)
        radius = np.sqrt(rng.uniform(0.01, 1.0, n))
        angle = phase + 2 * np.pi * (turns * radius + y / classes)
        x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + noise * rng.standard_normal((n, 2))
        return Split(x.astype(np.float32), y.astype(np.int64))

    return Task("spirals", classes, 6, *_standardised(draw(rows), draw(512), draw(1024)))


TASKS: dict[str, Callable[[np.random.Generator], Task]] = {"digits": _digits, "wine": _wine, "spirals": _spirals}


def make_task(name: str, rng: np.random.Generator) -> Task:
    """Raises `ConfigError` for a name that is not registered."""
    if name not in TASKS:
        raise ConfigError(f"env.tasks names {name!r}, which is not a task: choose from {', '.join(sorted(TASKS))}")
    return TASKS[name](rng)
