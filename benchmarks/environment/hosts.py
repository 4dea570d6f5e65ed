"""The hosts of the environment benchmark, as synthetic tasks with 500 validation rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def images(rng: np.random.Generator) -> Task:
    """Images of the shape of CIFAR-10's. The host has 1.25 million multiply-adds per image."""
    return _task(rng, "image", (3, 32, 32), 10)


def few_images(rng: np.random.Generator) -> Task:
    """The same with 50 validation rows, as in the public implementation that we compare with."""
    return _task(rng, "image", (3, 32, 32), 10, val=50)


@dataclass(frozen=True)
class BenchHost:
    """A host, and the targets for a fleet of `goal_envs`."""

    name: str
    factory: Callable[[np.random.Generator], Task]
    seed: str  # the blueprint of all its seeds in the mix "3 alike"
    goal_envs: int
    goals: Mapping[str, float]  # fleet over loop, by mix
    goal_steps: float = 0.0  # inner steps/s with three active seeds; 0 for none

    @property
    def task(self) -> str:
        return f"{self.factory.__module__}:{self.factory.__name__}"


HOSTS = {
    host.name: host
    for host in (
        BenchHost("mlp", vectors, "dense", 64, {"3 alike": 6.0, "3 alike, 2 columns": 20.0}, 8000.0),
        BenchHost("cnn1d", sequences, "conv_light", 64, {"3 alike": 2.5}),
        BenchHost("cnn2d", images, "conv_light", 4, {"3 alike": 1.2}),
    )
}
