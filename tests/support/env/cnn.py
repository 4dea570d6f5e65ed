"""Small tasks for the CNN hosts."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from actors.env.tasks import Sizes, Split, Task, TaskFamily, registry
from actors.env.tasks.task import TaskKind


def sequences(rng: np.random.Generator, classes: int = 3, length: int = 20) -> Task:
    """One bump per class, shifted and noisy; the second channel is noise only."""

    def draw(n: int) -> Split:
        y = rng.integers(0, classes, n)
        at = rng.integers(0, length, n)
        x = 0.5 * rng.standard_normal((n, 2, length))
        for lag in range(4):
            x[np.arange(n), 0, (at + lag) % length] += 2.0 * np.cos(lag * (1 + y))
        return Split(x.astype(np.float32), y)

    return Task("sequences", classes, draw(256), draw(96), draw(96), "sequence")


def images(rng: np.random.Generator) -> Task:
    """scikit-learn's digits as 1x8x8."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x = (bunch.images[order, None] / 8.0 - 1.0).astype(np.float32)
    y = bunch.target[order].astype(np.int64)
    cut = (slice(0, 800), slice(800, 1000), slice(1000, None))
    train, val, test = (Split(x[c], y[c]) for c in cut)
    return Task("images", 10, train, val, test, "image")


FAMILIES = {
    "sequences": (sequences, 6),
    "wide_sequences": (lambda rng: sequences(rng, 5), 9),
    "images": (images, 6),
    "wide_images": (images, 8),
}
"""Factories and widths of hosts."""


def register() -> None:
    """Register the tasks."""
    for name, (factory, width) in FAMILIES.items():
        kind: TaskKind = "sequence" if "sequences" in name else "image"
        family = TaskFamily(name, "train", kind, "for tests", factory, Sizes(0, 0, 0), widths=(width, width))
        registry.register(family)


def forget() -> None:
    """Undo `register`."""
    for name in FAMILIES:
        registry._FAMILIES.pop(name, None)
