"""Installed versions match the pins, and packages hold what they should."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution, version
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


def test_the_wheel_contains_all_packages_and_the_command() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"only-include": ["actors", "learner", "deploy", "tamiyo.py"]}
    assert PROJECT["project"]["scripts"] == {"tamiyo": "deploy.cli:main"}
    assert all((ROOT / room / "py.typed").is_file() for room in ("actors", "learner", "deploy"))


def test_an_editable_install_leaves_no_copy_behind() -> None:
    """A copy of `tamiyo.py` next to the path file would shadow the one in the checkout."""
    import tamiyo

    assert Path(tamiyo.__file__).parent == ROOT
    files = {str(f) for f in distribution("tamiyo").files or []}
    if "_editable_impl_tamiyo.pth" in files:
        assert "tamiyo.py" not in files
    assert not list((ROOT / "proto").rglob("*.py")), "a package named proto would shadow proto-plus"
