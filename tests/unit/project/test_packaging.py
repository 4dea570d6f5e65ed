"""Installed versions match the pins, and no package shadows another."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_are_plain_pins() -> None:
    text = (ROOT / "constraints.txt").read_text()
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line), line
    assert pins()["torch"] == "2.13.0"


def test_every_dependency_is_pinned_and_installed_in_that_version() -> None:
    known = {canonical(name): pin for name, pin in pins().items()}
    project = PROJECT["project"]
    for requirement in project["dependencies"] + project["optional-dependencies"]["dev"]:
        found = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert found is not None
        name = canonical(found.group())
        assert name in known, f"{name} is not pinned in constraints.txt"
        if "; " not in requirement:
            assert version(name).partition("+")[0] == known[name]


def test_no_package_named_proto_shadows_proto_plus() -> None:
    assert not list((ROOT / "proto").rglob("*.py"))
