"""`make_host`: the host of a task, by the shape of its samples."""

from __future__ import annotations

from collections.abc import Sequence

from actors.config import ConfigError
from actors.env.hosts.cnn import CNN1dHost, CNN2dHost
from actors.env.hosts.host import Host
from actors.env.hosts.mlp import MLPHost
from actors.env.tasks import Task


def make_host(task: Task, slots: int) -> Host:
    """Make an MLP for vectors `[F]`, a 1-D CNN for sequences `[C, L]`, a 2-D CNN for images `[C, H, W]`."""
    sample = task.train.x.shape[1:]
    match sample:
        case (features,):
            return MLPHost(features, task.host_width, task.num_classes, slots)
        case (channels, length):
            return CNN1dHost(channels, length, task.host_width, task.num_classes, slots)
        case (channels, height, width):
            return CNN2dHost(channels, (height, width), _image_channels(task.host_width, slots), task.num_classes)
    raise ConfigError(f"task {task.task_id!r} has samples of shape {sample}: use [F], [C, L] or [C, H, W]")


def _image_channels(width: int, slots: int) -> tuple[int, ...]:
    """Return the channels of each block: the first two have the task's width, the others 1.5 times as many."""
    return tuple(width if s < 2 else 3 * width // 2 for s in range(slots))


def padded_host(hosts: Sequence[Host]) -> Host:
    """Return the smallest host that each of `hosts` can be padded to; they have one kind and spatial size."""
    first, classes = hosts[0], max(h.num_classes for h in hosts)
    if isinstance(first, MLPHost):
        mlps = [h for h in hosts if isinstance(h, MLPHost)]
        return MLPHost(max(h.num_features for h in mlps), max(h.width for h in mlps), classes, first.slots)
    if isinstance(first, CNN1dHost):
        ones = [h for h in hosts if isinstance(h, CNN1dHost)]
        inputs = max(h.num_features for h in ones)
        return CNN1dHost(inputs, first.length, max(h.width for h in ones), classes, first.slots)
    twos = [h for h in hosts if isinstance(h, CNN2dHost)]
    channels = tuple(max(c) for c in zip(*(h.channels for h in twos), strict=True))
    return CNN2dHost(max(h.num_features for h in twos), twos[0].size, channels, classes)
