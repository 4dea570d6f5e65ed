"""`TaskFamily`: a named distribution of tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from actors.env.tasks.task import Sizes, Task, TaskKind

Membership = Literal["train", "heldout"]


WIDTHS: dict[TaskKind, tuple[int, int]] = {"vector": (2, 32), "sequence": (2, 16), "image": (2, 16)}
"""Ranges of the host's width by kind of task: from hosts that need more to hosts that need nothing."""


@dataclass(frozen=True)
class DataFiles:
    """Where data sets that are not bundled are, and whether they may be downloaded."""

    data_dir: str | None = None
    download: bool = False


@dataclass(frozen=True)
class TaskFamily:
    """A named distribution of tasks. Shapes and number of classes are the same in every draw."""

    name: str
    split: Membership  # policies train on "train"; results are reported on "heldout"
    kind: TaskKind
    description: str
    factory: Callable[[np.random.Generator], Task] | None  # None if the data come from files
    sizes: Sizes
    from_files: Callable[[DataFiles], Task] | None = None
    widths: tuple[int, int] | None = None
    """Range of the host's width; None means the range of the kind, in `WIDTHS`."""

    @property
    def host_widths(self) -> tuple[int, int]:
        """The range from which episodes draw the width of the host, in units or channels."""
        return self.widths or WIDTHS[self.kind]

    def make(self, rng: np.random.Generator, files: DataFiles) -> Task:
        """Draw a task, or load it from `files`."""
        if self.from_files is not None:
            return self.from_files(files)
        assert self.factory is not None, f"task family {self.name!r} has neither a factory nor files"
        return self.factory(rng)
