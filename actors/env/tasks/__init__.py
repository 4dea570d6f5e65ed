"""Tasks: the classification problems that hosts learn.

A `TaskFamily` draws a `Task` (train, validation and test rows) from a random generator, so that the seeds of an episode
determine its data. `families/` holds the built-in families, `registry.py` finds a family by name, `custom.py` loads
those of users.
"""

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
