"""Every setting reaches a consumer: code outside the configuration modules reads it by name."""

from __future__ import annotations

import dataclasses
import re
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


@cache
def reads_of_consumers() -> set[tuple[str, str]]:
    """(owner, attribute) of every `owner.attribute` in the sources; the owner is the last name before the dot."""
    sources = {p for room in ("actors", "learner", "deploy") for p in (ROOT / room).rglob("*.py")} - CONFIG_MODULES
    return {read for p in sources for read in re.findall(r"\b(?=(\w+)\.(\w+)\b(?! = ))", p.read_text())}


def unread(section: str, kind: type) -> list[str]:
    """Return the fields of a section that no code reads from something that is called like a section."""
    seen = {name for owner, name in reads_of_consumers() if owner in SECTIONS | {section}}
    return [f.name for f in dataclasses.fields(kind) if RESOLVED.get(f.name, f.name) not in seen]


def test_every_setting_reaches_a_consumer() -> None:
    sections = get_type_hints(Config)
    assert {section: unread(section, kind) for section, kind in sections.items()} == {s: [] for s in sections}
