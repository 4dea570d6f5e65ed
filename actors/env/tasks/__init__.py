"""Tasks: what hosts are trained on. A family makes a `Task` from a generator that depends on the seeds alone."""

from actors.env.tasks.family import DataFiles, TaskFamily
from actors.env.tasks.registry import families, find_family, make_task, register
from actors.env.tasks.task import Sizes, Split, Task, draw_splits

__all__ = [
    "DataFiles",
    "Sizes",
    "Split",
    "Task",
    "TaskFamily",
    "draw_splits",
    "families",
    "find_family",
    "make_task",
    "register",
]
