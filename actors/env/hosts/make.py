"""`make_host`: the host of a task, by the shape of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from actors.config import ConfigError
from actors.env.hosts.cnn import CNN1dHost, CNN2dHost
from actors.env.hosts.host import Host
from actors.env.hosts.mlp import MLPHost
from actors.env.tasks import Task


def make_host(task: Task, width: int, slots: int) -> Host:
    """Make an MLP for vectors `[F]`, a 1-D CNN for sequences `[C, L]`, a 2-D CNN for images `[C, H, W]`."""
    sample, classes = task.train.x.shape[1:], task.num_classes
    match sample:
        case (features,):
            return MLPHost(features, width, classes, slots)
        case (channels, length):
            return CNN1dHost(channels, length, width, classes, slots)
        case (channels, height, wide):
            return CNN2dHost(channels, (height, wide), width, classes, slots)
    raise ConfigError(f"task {task.task_id!r} has samples of shape {sample}: use [F], [C, L] or [C, H, W]")


def padded_host(hosts: Sequence[Host]) -> Host:
    """Return the smallest host that each of `hosts` can be padded to; they have one kind and spatial size."""
    largest = {name: max(getattr(h, name) for h in hosts) for name in ("num_features", "width", "num_classes")}
    return replace(hosts[0], **largest)  # type: ignore[type-var]
