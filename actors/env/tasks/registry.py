"""The task families by name: built in, registered in code, installed by other packages, or imported on the spot."""

from __future__ import annotations

import difflib

import numpy as np

from actors.config import ConfigError, require
from actors.env.tasks.custom import imported_family, installed_family, installed_names
from actors.env.tasks.families import (
    boolean,
    bundled,
    drawn,
    functions,
    images,
    mlbench,
    planar,
    signals,
    tabular,
    waves,
)
from actors.env.tasks.family import DataFiles, Membership, TaskFamily
from actors.env.tasks.task import Task, TaskKind

_HOMES = (bundled, planar, tabular, functions, drawn, signals, images, boolean, waves, mlbench)
_FAMILIES: dict[str, TaskFamily] = {family.name: family for home in _HOMES for family in home.FAMILIES}
_IMPORTED: dict[str, TaskFamily] = {}


def register(family: TaskFamily) -> None:
    """Make a family known by its name in this process; entry points are known in all of them."""
    require(family.name not in _FAMILIES, f"there is a task named {family.name!r} already")
    require(":" not in family.name, f"a task's name has no colon, as in {family.name!r}: that stands for an import")
    _FAMILIES[family.name] = family


def families(split: Membership | None = None, kind: TaskKind | None = None) -> tuple[TaskFamily, ...]:
    """All that are registered or installed, training families first; of one split or kind where it is given."""
    known = [*_FAMILIES.values(), *(find_family(name) for name in sorted(_installed_anew()))]
    chosen = [f for f in known if split in (None, f.split) and kind in (None, f.kind)]
    return tuple(sorted(chosen, key=lambda f: f.split != "train"))


def find_family(name: str) -> TaskFamily:
    """Raises `ConfigError` for a name that is nowhere, or that leads to something broken."""
    if name in _FAMILIES:
        return _FAMILIES[name]
    if name not in _IMPORTED:
        if ":" in name:
            _IMPORTED[name] = imported_family(name)
        elif name in (installed := installed_names()):
            _IMPORTED[name] = installed_family(installed[name])
        else:
            raise ConfigError(f"env.tasks names {name!r}, which is not a task{_hint(name, [*_FAMILIES, *installed])}")
    return _IMPORTED[name]


def make_task(name: str, rng: np.random.Generator, files: DataFiles | None = None) -> Task:
    """Draws a task of the family `name`, which may be `mypkg:factory`. Raises `ConfigError` where that cannot be."""
    return find_family(name).make(rng, files or DataFiles())


def _installed_anew() -> set[str]:
    names = set(installed_names())
    for name in sorted(names & set(_FAMILIES)):
        raise ConfigError(f"an installed package offers a task named {name!r}, which is taken: rename its entry point")
    return names


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    first = f"; did you mean {close[0]!r}?" if close else ":"
    return f"{first} choose from {', '.join(sorted(known))}, or give mypkg:factory"
