"""The hosts of the environment benchmark, as synthetic tasks with 500 validation rows, and their widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actors.env.tasks import Split, Task
from actors.env.tasks.task import TaskKind

WIDTH = 16


def _task(rng: np.random.Generator, kind: TaskKind, shape: tuple[int, ...], classes: int, val: int = 500) -> Task:
    """Draw a task with a mean and a wave for each class.

    It is easy, so that a host that trains keeps its accuracy during the benchmark.
    """
    wave = np.cos(np.pi * np.arange(classes)[:, None] * np.linspace(0.0, 1.0, shape[-1]))
    means = rng.standard_normal((classes, shape[0], *(1,) * (len(shape) - 1)))

    def draw(n: int) -> Split:
        y = rng.integers(0, classes, n)
        center = means[y] + wave[y].reshape(n, *(1,) * (len(shape) - 1), -1)
        return Split((center + 0.5 * rng.standard_normal((n, *shape))).astype(np.float32), y)

    return Task("benchmark", classes, draw(1024), draw(val), draw(64), kind)


def vectors(rng: np.random.Generator) -> Task:
    return _task(rng, "vector", (16,), 4)


def sequences(rng: np.random.Generator) -> Task:
    """Sequences of the length of MNIST-1D's."""
    return _task(rng, "sequence", (1, 40), 10)


def small_images(rng: np.random.Generator) -> Task:
    """Images of the shape of scikit-learn's digits."""
    return _task(rng, "image", (1, 8, 8), 10)


def images(rng: np.random.Generator) -> Task:
    """Images of the shape of CIFAR-10's. The host has 1.25 million multiply-adds per image."""
    return _task(rng, "image", (3, 32, 32), 10)


def few_images(rng: np.random.Generator) -> Task:
    """The same with 50 validation rows, as in the public implementation that we compare with."""
    return _task(rng, "image", (3, 32, 32), 10, val=50)


@dataclass(frozen=True)
class BenchHost:
    """A host, and the targets for it with three active seeds, or with two columns beside them."""

    name: str
    factory: Callable[[np.random.Generator], Task]
    seed: str  # the blueprint of all its seeds in the mix "3 alike"
    widths: tuple[int, ...]  # of the fleets with which one of drawn widths, from the least to the largest, is compared
    goal_envs: int
    goal_ratio: float  # fleet over loop
    goal_steps: float | None = None  # inner steps/s
    goal_columns: float | None = None  # fleet over loop, with columns
    goal_widths: float | None = None  # a fleet of drawn widths over the mean of fleets of one width

    @property
    def task(self) -> str:
        return f"{self.factory.__module__}:{self.factory.__name__}"


HOSTS = {
    host.name: host
    for host in (
        BenchHost("mlp", vectors, "dense", (2, 4, 8, 16, 32), 64, 6.0, 8000.0, 20.0, 0.8),
        BenchHost("cnn1d", sequences, "conv_light", (2, 4, 8, 16), 64, 2.5),
        BenchHost("cnn2d", images, "conv_light", (2, 4, 8, 16), 4, 1.2),
    )
}
