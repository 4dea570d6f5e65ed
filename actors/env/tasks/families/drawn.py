"""Problems whose difficulty is drawn too: from linearly separable to impossible for a small host.

With a few fixed difficulties a policy could recognize each task. Here the gain from growing varies with the seed, and
only the course of training reveals it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.families.boolean import over_bits
from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits

SIZES = Sizes(1024, 1024, 1024)
MORE = Sizes(2048, 1024, 1024)  # where there are many classes
POOL_ROWS = 4096  # on which classes are balanced
MAX_WRONG = 0.2  # largest fraction of wrong labels, in all splits; a quarter of the tasks have some


def voronoi(
    rng: np.random.Generator, name: str, features: int, classes: int, counts: tuple[int, int], sizes: Sizes = SIZES
) -> Task:
    """The class of the nearest of some points (Voronoi cells).

    The number of points, the relevant dimensions (at least half) and the fraction of wrong labels are drawn.
    """
    used = rng.permutation(features)[: rng.integers(max(2, features // 2), features + 1)]
    count = round(np.exp(rng.uniform(*np.log(counts))))
    points = rng.uniform(-1.0, 1.0, (count, len(used)))
    label = rng.permutation(np.arange(count) % classes)
    wrong = _wrong_fraction(rng)

    def draw(n: int) -> Rows:
        x = rng.uniform(-1.0, 1.0, (n, features))
        nearest = ((x[:, None, used] - points) ** 2).sum(-1).argmin(1)
        return x, _with_wrong_labels(label[nearest], classes, wrong, rng)

    return Task(name, classes, *draw_splits(draw, sizes))


def ripples(rng: np.random.Generator, features: int = 2, classes: int = 4) -> Task:
    """Quantiles of a sum of random waves (Rahimi and Recht, 2007).

    Their frequency, the relevant dimensions and the fraction of wrong labels are drawn.
    """
    used = rng.permutation(features)[: rng.integers(1, features + 1)]
    frequency = np.exp(rng.uniform(np.log(0.5), np.log(3.0))) / np.sqrt(len(used))
    waves, phases = frequency * rng.standard_normal((len(used), 24)), rng.uniform(0.0, 2 * np.pi, 24)
    heights, wrong = rng.standard_normal(24), _wrong_fraction(rng)

    def value(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.cos(x[:, used] @ waves + phases) @ heights)

    edges = np.quantile(value(rng.standard_normal((POOL_ROWS, features))), np.arange(1, classes) / classes)

    def draw(n: int) -> Rows:
        x = rng.standard_normal((n, features))
        return x, _with_wrong_labels(np.digitize(value(x), edges), classes, wrong, rng)

    return Task("ripples", classes, *draw_splits(draw, SIZES))


def quadrics(rng: np.random.Generator, features: int = 10, rank: int = 4) -> Task:
    """The side of a random quadric: a sum of squares of hidden directions with mixed signs, against its median.

    The directions and the fraction of wrong labels are drawn.
    """
    directions = rng.standard_normal((features, rank))
    signs, wrong = np.where(np.arange(rank) % 2, 1.0, -1.0), _wrong_fraction(rng)

    def value(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((x @ directions) ** 2 @ signs)

    edge = np.median(value(rng.standard_normal((POOL_ROWS, features))))

    def draw(n: int) -> Rows:
        x = rng.standard_normal((n, features))
        return x, _with_wrong_labels((value(x) > edge).astype(np.int64), 2, wrong, rng)

    return Task("quadrics", 2, *draw_splits(draw, SIZES))


def rules(rng: np.random.Generator, bits: int = 16) -> Task:
    """A random balanced truth table over a few hidden bits; their number and the fraction of wrong labels are drawn."""
    used = rng.permutation(bits)[: rng.integers(1, 6)]
    table, wrong = rng.permutation(np.arange(2 ** len(used)) % 2), _wrong_fraction(rng)

    def label(x: NDArray[np.int64]) -> NDArray[np.int64]:
        return _with_wrong_labels(table[x[:, used] @ (1 << np.arange(len(used)))], 2, wrong, rng)

    return over_bits("rules", bits, label, rng)


def _wrong_fraction(rng: np.random.Generator) -> float:
    return float(max(0.0, rng.uniform(-3 * MAX_WRONG, MAX_WRONG)))


def _with_wrong_labels(
    y: NDArray[np.integer], classes: int, share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    wrong = rng.random(len(y)) < share
    return np.where(wrong, (y + rng.integers(1, classes, len(y))) % classes, y).astype(np.int64)


def _voronoi(
    name: str, description: str, features: int, classes: int, counts: tuple[int, int], sizes: Sizes = SIZES
) -> TaskFamily:
    factory = partial(voronoi, name=name, features=features, classes=classes, counts=counts, sizes=sizes)
    return TaskFamily(name, "train", "vector", description, factory, sizes)


FAMILIES = (
    _voronoi("cells_two", "two colors on 4 to 32 cells of the plane", 2, 2, counts=(4, 32)),
    _voronoi("cells_many", "six colors on 8 to 40 cells of the plane", 2, 6, counts=(8, 40)),
    _voronoi("cells_hidden", "5 to 12 cells in some of six dimensions", 6, 5, counts=(5, 12)),
    _voronoi("cells_colors", "32 colors on 32 to 64 cells in some of six dimensions", 6, 32, (32, 64), MORE),
    TaskFamily("ripples", "train", "vector", "quartiles of random waves in the plane", ripples, SIZES),
    TaskFamily("quadrics", "train", "vector", "sides of a random quadric in ten dimensions", quadrics, SIZES),
    TaskFamily("rules", "train", "vector", "a random table over one to five of sixteen bits", rules, SIZES),
)
