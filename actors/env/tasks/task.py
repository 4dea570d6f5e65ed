"""`Task`: a classification problem with train, validation and test rows, which are disjoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.config import require

TaskKind = Literal["vector", "sequence", "image"]
Rows = tuple[NDArray[np.floating], NDArray[np.integer]]  # x [n, ...], y [n]
DIMENSIONS: dict[TaskKind, int] = {"vector": 2, "sequence": 3, "image": 4}


class Sizes(NamedTuple):
    """Number of rows of each split."""

    train: int
    val: int
    test: int


@dataclass(frozen=True)
class Split:
    """The rows of one split."""

    x: NDArray[np.float32]  # vector [N, F], sequence [N, C, L], image [N, C, H, W]
    y: NDArray[np.int64]  # [N]

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, chosen: NDArray[np.int64]) -> Split:
        """Return some of the rows."""
        return Split(self.x[chosen], self.y[chosen])


@dataclass(frozen=True)
class Task:
    """A classification problem. Raise `ConfigError` if the arrays do not fit `kind` or each other."""

    task_id: str
    num_classes: int
    train: Split
    val: Split
    test: Split
    kind: TaskKind = "vector"
    host_width: int | None = None
    """Hidden units of the host, or channels of a CNN, in a task of your own; None draws it from the range of its
    family."""

    def __post_init__(self) -> None:
        label = f"task {self.task_id!r}"
        require(self.kind in DIMENSIONS, f"{label} has kind {self.kind!r}: use one of {', '.join(DIMENSIONS)}")
        require(self.num_classes >= 2, f"{label} has {self.num_classes} classes: it needs at least 2")
        width = self.host_width
        require(width is None or width >= 1, f"{label} has host_width {width}: it must be at least 1")
        for name in ("train", "val", "test"):
            x, y = getattr(self, name).x, getattr(self, name).y
            part = f"{label}: {name}"
            require(x.dtype == np.float32, f"{part}.x is {x.dtype}: make it float32")
            require(y.dtype == np.int64, f"{part}.y is {y.dtype}: make it int64")
            dimensions = DIMENSIONS[self.kind]
            require(x.ndim == dimensions, f"{part}.x has {x.ndim} dimensions, but {self.kind} tasks have {dimensions}")
            require(y.shape == (len(x),), f"{part} has {len(x)} rows of x, but labels of shape {y.shape}")
            require(len(x) > 0, f"{part} is empty")
            require(x.shape[1:] == self.shape, f"{part} has rows of shape {x.shape[1:]}, but train has {self.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row: (F,), (C, L) or (C, H, W)."""
        return tuple(int(n) for n in self.train.x.shape[1:])

    @property
    def sizes(self) -> Sizes:
        return Sizes(len(self.train), len(self.val), len(self.test))

    @property
    def chance_loss(self) -> float:
        """Cross-entropy of the uniform guess, nats."""
        return float(np.log(self.num_classes))

    @property
    def chance_accuracy(self) -> float:
        """Accuracy of the uniform guess, points."""
        return 100.0 / self.num_classes


def standardized(train: Split, val: Split, test: Split) -> tuple[Split, Split, Split]:
    """Scale features, or channels of sequences and images, to mean 0 and variance 1 over the training rows."""
    axes = tuple(axis for axis in range(train.x.ndim) if axis != 1)
    mean = train.x.mean(axes, dtype=np.float64, keepdims=True)
    std = train.x.std(axes, dtype=np.float64, keepdims=True)
    std = np.where(std > 1e-8, std, 1.0)
    scaled = [Split(((s.x - mean) / std).astype(np.float32), s.y) for s in (train, val, test)]
    return scaled[0], scaled[1], scaled[2]


def split_rows(x: NDArray[np.floating], y: NDArray[np.integer], sizes: Sizes) -> tuple[Split, Split, Split]:
    """Cut consecutive rows into three splits."""
    cuts = np.cumsum(sizes)
    if cuts[-1] > len(y):
        raise ValueError(f"{len(y)} rows are too few for splits of {tuple(sizes)}")
    starts = (0, cuts[0], cuts[1])
    parts = [Split(x[a:b].astype(np.float32), y[a:b].astype(np.int64)) for a, b in zip(starts, cuts, strict=True)]
    return parts[0], parts[1], parts[2]


def draw_splits(draw: Callable[[int], Rows], sizes: Sizes) -> tuple[Split, Split, Split]:
    """Draw each split with `draw(n) -> (x [n, ...], y [n])`, and standardize x."""
    drawn = [draw(n) for n in sizes]
    parts = [Split(x.astype(np.float32), y.astype(np.int64)) for x, y in drawn]
    return standardized(parts[0], parts[1], parts[2])


def with_label_noise(task: Task, name: str, fraction: float, rng: np.random.Generator) -> Task:
    """Replace a fraction of the training labels by another class, which extra capacity can memorize; validation and
    test labels stay correct."""
    y = task.train.y.copy()
    wrong = rng.permutation(len(y))[: round(fraction * len(y))]
    y[wrong] = (y[wrong] + rng.integers(1, task.num_classes, len(wrong))) % task.num_classes
    return replace(task, task_id=name, train=Split(task.train.x, y))
