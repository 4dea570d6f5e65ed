"""Label noise: wrong labels in the training rows, which extra capacity can memorize."""

from __future__ import annotations

import dataclasses

import numpy as np

from actors.env.tasks.task import Split, Task


def with_label_noise(task: Task, name: str, fraction: float, rng: np.random.Generator) -> Task:
    """Replace a fraction of the training labels by another class; validation and test labels stay correct."""
    y = task.train.y.copy()
    wrong = rng.permutation(len(y))[: round(fraction * len(y))]
    y[wrong] = (y[wrong] + rng.integers(1, task.num_classes, len(wrong))) % task.num_classes
    return dataclasses.replace(task, task_id=name, train=Split(task.train.x, y))
