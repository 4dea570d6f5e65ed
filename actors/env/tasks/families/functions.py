"""Labels computed by a random function: teacher networks; held out: a decision tree and Friedman's regression."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits

SIZES = Sizes(1024, 1024, 1024)
POOL_ROWS = 4096  # used to balance the classes of a function


def teacher(rng: np.random.Generator, name: str, widths: tuple[int, ...], features: int, classes: int) -> Task:
    """The argmax of a random ReLU network, whose outputs are shifted so that classes are about equally frequent."""
    sizes = (features, *widths, classes)
    layers = [rng.standard_normal((a, b)) * np.sqrt(2 / a) for a, b in pairwise(sizes)]
    shifts = [0.5 * rng.standard_normal(b) for b in sizes[1:]]

    def outputs(x: NDArray[np.float64]) -> NDArray[np.float64]:
        for w, b in zip(layers[:-1], shifts[:-1], strict=True):
            x = np.maximum(x @ w + b, 0.0)
        return np.asarray(x @ layers[-1])

    balance = _balancing(outputs(rng.standard_normal((POOL_ROWS, features))))

    def draw(n: int) -> Rows:
        x = rng.standard_normal((n, features))
        return x, (outputs(x) + balance).argmax(1)

    return Task(name, classes, *draw_splits(draw, SIZES))


def _balancing(outputs: NDArray[np.float64], rounds: int = 100) -> NDArray[np.float64]:
    """Return the shift of outputs [n, C] that makes each the largest about equally often."""
    classes = outputs.shape[1]
    shift = -outputs.mean(0)
    for rate in np.linspace(0.3, 0.03, rounds):
        share = np.bincount((outputs + shift).argmax(1), minlength=classes) / len(outputs)
        shift += rate * outputs.std() * (1.0 - classes * share)
    return np.asarray(shift)


def decision_tree(rng: np.random.Generator, depth: int = 4, features: int = 4, classes: int = 4) -> Task:
    """A balanced tree of axis-parallel cuts of the unit cube; sibling leaves have different classes."""
    low, high = np.zeros((1, features)), np.ones((1, features))
    cuts = []
    for _ in range(depth):
        nodes = np.arange(len(low))
        axis = rng.integers(0, features, len(low))
        left, right = low[nodes, axis], high[nodes, axis]
        threshold = left + (right - left) * rng.uniform(0.35, 0.65, len(low))
        cuts.append((axis, threshold))
        low, high = np.repeat(low, 2, axis=0), np.repeat(high, 2, axis=0)
        high[2 * nodes, axis], low[2 * nodes + 1, axis] = threshold, threshold
    leaves = np.concatenate([rng.permutation(classes) for _ in range(2**depth // classes)])

    def draw(n: int) -> Rows:
        x = rng.uniform(size=(n, features))
        node, rows = np.zeros(n, dtype=np.int64), np.arange(n)
        for axis, threshold in cuts:
            node = 2 * node + (x[rows, axis[node]] >= threshold[node])
        return x, leaves[node]

    return Task("decision_tree", classes, *draw_splits(draw, SIZES))


def friedman(rng: np.random.Generator, features: int = 10, classes: int = 4) -> Task:
    """Quartiles of Friedman's function (1991, MARS, eq. 61) with noise; its five inputs are hidden among ten."""
    order, noise = rng.permutation(features), rng.uniform(0.5, 1.0)

    def value(x: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b, c, d, e = x[:, order[:5]].T
        smooth = 10 * np.sin(np.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
        return np.asarray(smooth + noise * rng.standard_normal(len(x)))

    edges = np.quantile(value(rng.uniform(size=(POOL_ROWS, features))), np.arange(1, classes) / classes)

    def draw(n: int) -> Rows:
        x = rng.uniform(size=(n, features))
        return x, np.digitize(value(x), edges)

    return Task("friedman", classes, *draw_splits(draw, SIZES))


def _teacher(name: str, widths: tuple[int, ...], features: int, classes: int) -> TaskFamily:
    layers = "-".join(map(str, widths))
    factory = partial(teacher, name=name, widths=widths, features=features, classes=classes)
    return TaskFamily(name, "train", "vector", f"a random teacher network of widths {layers}", factory, SIZES)


FAMILIES = (
    _teacher("teacher_narrow", (6,), features=8, classes=3),
    _teacher("teacher_wide", (48,), features=6, classes=4),
    _teacher("teacher_deep", (32, 32), features=4, classes=5),
    _teacher("teacher_classes", (32,), features=10, classes=24),
    TaskFamily("decision_tree", "heldout", "vector", "a random tree of axis-parallel cuts", decision_tree, SIZES),
    TaskFamily("friedman", "heldout", "vector", "quartiles of a smooth regression function", friedman, SIZES),
)
