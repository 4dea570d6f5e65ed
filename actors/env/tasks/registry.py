"""Finds task families by name: built-in, registered, from installed packages, or imported by `mypkg:factory`."""

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
    skewed,
    tabular,
    waves,
)
from actors.env.tasks.family import DataFiles, Membership, TaskFamily
from actors.env.tasks.task import Task

_MODULES = (bundled, planar, tabular, functions, drawn, skewed, signals, images, boolean, waves, mlbench)
_FAMILIES: dict[str, TaskFamily] = {family.name: family for module in _MODULES for family in module.FAMILIES}
_IMPORTED: dict[str, TaskFamily] = {}


def register(family: TaskFamily) -> None:
    """Register a family in this process. Use an entry point to make it known in every process."""
    require(family.name not in _FAMILIES, f"a task named {family.name!r} already exists")
    require(
        ":" not in family.name,
        f"task name {family.name!r} contains a colon, which is reserved for imports: choose another",
    )
    _FAMILIES[family.name] = family


def families(split: Membership | None = None) -> tuple[TaskFamily, ...]:
    """Return registered and installed families, training families first; optionally of one split."""
    known = [*_FAMILIES.values(), *(find_family(name) for name in sorted(_checked_installed_names()))]
    return tuple(sorted((f for f in known if split in (None, f.split)), key=lambda f: f.split != "train"))


def find_family(name: str) -> TaskFamily:
    """Return the family of this name; raise `ConfigError` if there is none or it cannot be loaded."""
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
    """Draw a task of the family `name`; raise `ConfigError` if that is not possible."""
    return find_family(name).make(rng, files or DataFiles())


def _checked_installed_names() -> set[str]:
    names = set(installed_names())
    for name in sorted(names & set(_FAMILIES)):
        raise ConfigError(
            f"an installed package offers a task named {name!r}, a name that is taken: rename its entry point"
        )
    return names


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    first = f"; did you mean {close[0]!r}?" if close else ":"
    return f"{first} choose from {', '.join(sorted(known))}, or use mypkg:factory"
