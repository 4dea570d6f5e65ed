"""Every configuration field reaches a consumer: code outside the configuration modules reads it by name.

Reads are attribute accesses in the sources, told apart by what they are read from, so that `env.slots` is not taken for
a read of some other `.slots`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import get_type_hints

from deploy.config.schema import Config

ROOT = Path(__file__).parents[4]
CONFIG_MODULES = {
    *(ROOT / "actors/config").glob("*.py"),
    ROOT / "learner/config.py",
    ROOT / "actors/serving/external.py",
    ROOT / "deploy/config/schema.py",
}
ENTRY = {ROOT / "deploy/config/yaml.py", ROOT / "deploy/config/flags.py"}  # these handle every field alike

# Variable names that hold each section in the code that reads it.
ALIASES = {
    "run": {"run"},
    "env": {"env", "config", "c"},
    "gym": {"gym", "config"},
    "external": {"external", "config"},
    "imitation": {"imitation", "own"},
    "policy": {"policy", "config", "c", "own"},
    "actors": {"actors"},
    "queue": {"queue", "config", "_config", "limits", "c"},
    "learner": {"learner", "config", "c"},
}
RESOLVED = {"policy.head_size": "head_width"}  # read by a property, which the others read
HOMES = {  # where a section may be called just `config`
    "run": ("deploy",),
    "env": ("actors/env", "deploy"),
    "gym": ("actors/gym", "actors/rollout/sampler.py"),
    "external": ("actors/serving/server", "deploy/launch"),
    "imitation": ("deploy/imitation",),
    "policy": ("actors/policy", "learner/train.py"),
    "actors": ("actors", "deploy"),
    "queue": ("actors/transport",),
    "learner": ("learner", "deploy"),
}


def sources() -> list[Path]:
    return [p for room in ("actors", "learner", "deploy") for p in (ROOT / room).rglob("*.py")]


def reads(source: str) -> set[tuple[str, str]]:
    """(owner, attribute) of every `owner.attribute` that is loaded; the owner is the last name before the dot."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            found.add((name, node.attr))
    return found


def fields_of(kind: type) -> list[tuple[str, str]]:
    """(section, field) of every field of the configuration."""
    hints = get_type_hints(kind)
    return [(s.name, f.name) for s in dataclasses.fields(kind) for f in dataclasses.fields(hints[s.name])]


def unread(fields: Iterable[tuple[str, str]]) -> list[str]:
    """Return the fields that are not read outside the configuration modules and the entry points."""
    seen = {p: reads(p.read_text()) for p in sources() if p not in CONFIG_MODULES | ENTRY}
    missing = []
    for section, field in fields:
        homes = [ROOT / home for home in HOMES[section]]
        near = [owners for p, owners in seen.items() if any(p == home or home in p.parents for home in homes)]
        name = RESOLVED.get(f"{section}.{field}", field)
        if not any((alias, name) in owners for owners in near for alias in ALIASES[section]):
            missing.append(f"{section}.{field}")
    return missing


def test_every_field_reaches_its_consumer() -> None:
    fields = fields_of(Config)
    assert len(fields) > 50
    assert unread(fields) == []


def test_an_unused_field_is_detected() -> None:
    @dataclasses.dataclass(frozen=True)
    class Learning:
        lr: float = 1.0
        idle_lr: float = 1.0

    assert unread([("learner", f.name) for f in dataclasses.fields(Learning)]) == ["learner.idle_lr"]
    # A name that others bear is no read of it: actors have a `name`, the learner's configuration has none.
    assert unread([("learner", "color"), ("queue", "lr")]) == ["learner.color", "queue.lr"]


def test_assignments_and_strings_do_not_count_as_reads() -> None:
    assert reads("config.lr = 1\n'config.clip'\nx = a.config.gamma\n") == {("a", "config"), ("config", "gamma")}
