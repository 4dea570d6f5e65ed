"""Label noise: wrong labels in the training rows, so that capacity can be spent on what does not generalise."""

from __future__ import annotations

import dataclasses

import numpy as np

from actors.env.tasks.task import Split, Task


def with_label_noise(task: Task, name: str, share: float, rng: np.random.Generator) -> Task:
    """`share` of the training labels replaced by another class; validation and test labels stay true."""
    y = task.train.y.copy()
    wrong = rng.permutation(len(y))[: round(share * len(y))]
    y[wrong] = (y[wrong] + rng.integers(1, task.num_classes, len(wrong))) % task.num_classes
    return dataclasses.replace(task, task_id=name, train=Split(task.train.x, y))
