"""Problems in the plane: spirals, moons, rings, and (held out) a checkerboard."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits, with_label_noise

SIZES = Sizes(512, 1024, 1024)


def spirals(rng: np.random.Generator, classes: int = 3) -> Task:
    """Interleaved spiral arms; turns, noise and rotation are drawn."""
    turns, noise, phase = rng.uniform(1.75, 2.25), rng.uniform(0.01, 0.03), rng.uniform(0.0, 2 * np.pi)

    def draw(n: int) -> Rows:
        y = rng.integers(0, classes, n)
        radius = np.sqrt(rng.uniform(0.01, 1.0, n))
        angle = phase + 2 * np.pi * (turns * radius + y / classes)
        x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + noise * rng.standard_normal((n, 2))
        return x, y

    return Task("spirals", classes, *draw_splits(draw, SIZES))


def spirals_noisy(rng: np.random.Generator) -> Task:
    return with_label_noise(spirals(rng), "spirals_noisy", 0.2, rng)


def moons(rng: np.random.Generator) -> Task:
    """Two interleaved half circles; noise and rotation are drawn."""
    noise, phase = rng.uniform(0.1, 0.25), rng.uniform(0.0, 2 * np.pi)

    def draw(n: int) -> Rows:
        y = rng.integers(0, 2, n)
        angle = rng.uniform(0.0, np.pi, n)
        sign = 1.0 - 2.0 * y
        x = np.stack([sign * np.cos(angle) + y, sign * np.sin(angle) + 0.5 * y], 1)
        return _rotated(x, phase) + noise * rng.standard_normal((n, 2)), y

    return Task("moons", 2, *draw_splits(draw, SIZES))


def rings(rng: np.random.Generator, count: int = 6, classes: int = 3) -> Task:
    """Concentric rings whose classes repeat outwards; thickness, stretch and rotation are drawn."""
    noise, stretch, phase = rng.uniform(0.01, 0.025), rng.uniform(0.6, 1.0), rng.uniform(0.0, 2 * np.pi)

    def draw(n: int) -> Rows:
        ring, angle = rng.integers(0, count, n), rng.uniform(0.0, 2 * np.pi, n)
        radius = (ring + 1) / count + noise * rng.standard_normal(n)
        x = radius[:, None] * np.stack([np.cos(angle), stretch * np.sin(angle)], 1)
        return _rotated(x, phase), ring % classes

    return Task("rings", classes, *draw_splits(draw, SIZES))


def checkerboard(rng: np.random.Generator, squares: int = 4) -> Task:
    """Two colors on a board; its rotation and offset are drawn."""
    phase, offset = rng.uniform(0.0, 2 * np.pi), rng.uniform(0.0, 1.0, 2)

    def draw(n: int) -> Rows:
        x = rng.uniform(0.0, squares, (n, 2))
        y = np.floor(x + offset).astype(np.int64).sum(1) % 2
        return _rotated(x - squares / 2, phase), y

    return Task("checkerboard", 2, *draw_splits(draw, Sizes(1024, 1024, 1024)))


def _rotated(x: NDArray[np.float64], angle: float) -> NDArray[np.float64]:
    c, s = np.cos(angle), np.sin(angle)
    return np.asarray(x @ np.array([[c, s], [-s, c]]))


FAMILIES = (
    TaskFamily("spirals", "train", "vector", "three interleaved spiral arms", spirals, SIZES),
    TaskFamily("spirals_noisy", "train", "vector", "spirals, a fifth of the labels wrong", spirals_noisy, SIZES),
    TaskFamily("moons", "train", "vector", "two interleaved half circles", moons, SIZES),
    TaskFamily("rings", "train", "vector", "six concentric rings, three classes", rings, SIZES),
    TaskFamily("checkerboard", "heldout", "vector", "two colors on a 4x4 board", checkerboard, Sizes(1024, 1024, 1024)),
)
