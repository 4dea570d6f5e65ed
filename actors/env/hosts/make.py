"""`make_host`: the host of a task, by its kind."""

from __future__ import annotations

from dataclasses import replace

from actors.env.hosts.cnn import CNN1dHost, CNN2dHost
from actors.env.hosts.host import Host
from actors.env.hosts.mlp import MLPHost
from actors.env.tasks.task import Task, TaskKind

HOSTS: dict[TaskKind, type[Host]] = {"vector": MLPHost, "sequence": CNN1dHost, "image": CNN2dHost}


def make_host(task: Task, width: int, slots: int) -> Host:
    """Make an MLP for vectors `[F]`, a 1-D CNN for sequences `[C, L]`, a 2-D CNN for images `[C, H, W]`."""
    return HOSTS[task.kind](task.shape[0], width, task.num_classes, slots)


def padded_host(one: Host, other: Host) -> Host:
    """Return the smallest host that both can be padded to; they have one kind and spatial size."""
    sizes = ("num_features", "width", "num_classes")
    return replace(one, **{name: max(getattr(one, name), getattr(other, name)) for name in sizes})
