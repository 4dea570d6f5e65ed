"""Every setting reaches a consumer: code outside the configuration modules reads it by name."""

from __future__ import annotations

import ast
import dataclasses
from functools import cache
from pathlib import Path
from typing import get_type_hints

from deploy.config.schema import Config

ROOT = Path(__file__).parents[4]
CONFIG_MODULES = {
    *(ROOT / "actors/config").glob("*.py"),
    *(ROOT / "deploy/config").glob("*.py"),
    ROOT / "learner/config.py",
    ROOT / "actors/serving/external.py",
}
SECTIONS = {"config", "_config", "c", "own", "limits", "queue", "run"}
"""Names by which sections go in the code that reads them, beside their own."""
RESOLVED = {"head_size": "head_width"}  # read by a property, which the others read


def reads(source: str) -> set[tuple[str, str]]:
    """(owner, attribute) of every `owner.attribute` that is loaded; the owner is the last name before the dot."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            found.add((name, node.attr))
    return found


@cache
def reads_of_consumers() -> set[tuple[str, str]]:
    sources = {p for room in ("actors", "learner", "deploy") for p in (ROOT / room).rglob("*.py")} - CONFIG_MODULES
    return {read for p in sources for read in reads(p.read_text())}


def unread(section: str, kind: type) -> list[str]:
    """Return the fields of a section that no code reads from something that is called like a section."""
    seen = {name for owner, name in reads_of_consumers() if owner in SECTIONS | {section}}
    return [f.name for f in dataclasses.fields(kind) if RESOLVED.get(f.name, f.name) not in seen]


def test_every_setting_reaches_a_consumer() -> None:
    sections = get_type_hints(Config)
    assert {section: unread(section, kind) for section, kind in sections.items()} == {s: [] for s in sections}


def test_an_unused_setting_is_detected() -> None:
    @dataclasses.dataclass(frozen=True)
    class Learning:
        lr: float = 1.0
        idle_lr: float = 1.0

    assert unread("learner", Learning) == ["idle_lr"]
    assert reads("config.lr = 1\n'config.clip'\nx = a.config.gamma\n") == {("a", "config"), ("config", "gamma")}
