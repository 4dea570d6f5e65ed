"""Custom tasks: names such as `mypkg:factory`, and entry points of the group `tamiyo.tasks`.

A factory takes a `numpy.random.Generator` and returns a `Task` that has the same shapes in every draw. An entry point
names a factory or a `TaskFamily`. The family made from a factory is a training family.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np

from actors.config import ConfigError, require
from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Task
from actors.errors import described
from actors.own_module import add_working_directory

GROUP = "tamiyo.tasks"


def imported_family(name: str) -> TaskFamily:
    """Import the family named `module:factory`; modules in the working directory are found too."""
    module_name, _, attribute = name.partition(":")
    require(bool(module_name and attribute), f"task {name!r}: write it as package.module:factory")
    add_working_directory()
    return _family(name, _loaded(EntryPoint(name, name, GROUP), f"task {name!r} cannot be imported"))


def installed_names() -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by name, without importing them."""
    return {point.name: point for point in entry_points(group=GROUP)}


def installed_family(point: EntryPoint) -> TaskFamily:
    """Import the family of an entry point."""
    complaint = f"task {point.name!r} of entry point {point.value} cannot be loaded"
    return _family(point.name, _loaded(point, complaint))


def _loaded(point: EntryPoint, complaint: str) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{complaint}: {described(error)}") from error


def _family(name: str, target: Any) -> TaskFamily:
    if isinstance(target, TaskFamily):
        return target
    require(callable(target), f"task {name!r} is a {type(target).__name__}: it must be a function (rng) -> Task")

    example = _checked(name, target, np.random.default_rng(0))

    def factory(rng: np.random.Generator) -> Task:
        task = _checked(name, target, rng)
        for what in ("kind", "shape", "num_classes", "host_width"):
            one, other = getattr(example, what), getattr(task, what)
            require(
                one == other,
                f"task {name!r} has {what} {one} in one draw and {other} in another: every draw needs the same",
            )
        return task

    description = ((target.__doc__ or "").strip() or "a custom task").splitlines()[0]
    widths = None if example.host_width is None else (example.host_width, example.host_width)
    return TaskFamily(name, "train", example.kind, description, factory, example.sizes, widths=widths)


def _checked(name: str, target: Any, rng: np.random.Generator) -> Task:
    try:
        task = target(rng)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"task {name!r} failed: {described(error)}") from error
    require(isinstance(task, Task), f"task {name!r} returned a {type(task).__name__}: it must return a Task")
    assert isinstance(task, Task)
    for part in ("train", "val", "test"):
        split = getattr(task, part)
        require(bool(np.isfinite(split.x).all()), f"task {name!r}: {part}.x has values that are not finite")
        low, high = int(split.y.min()), int(split.y.max())
        require(
            low >= 0 and high < task.num_classes,
            f"task {name!r}: {part}.y ranges from {low} to {high}; with {task.num_classes} classes it must be in 0 to "
            f"{task.num_classes - 1}",
        )
    return task
