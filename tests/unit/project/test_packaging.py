"""Pinned versions are installed, and the container image locks them by hash."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
LOCK = (ROOT / "deploy/image/lock.txt").read_text()
LOCKED = dict(re.findall(r"^([\w-]+)==(\S+)", LOCK, re.MULTILINE))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs_of(extra: str) -> list[str]:
    """What an extra needs, those that it includes taken together."""
    lines = list[str]()
    for line in PROJECT["optional-dependencies"][extra]:
        included = re.fullmatch(r"tamiyo\[(.*)\]", line)
        lines += [need for name in included[1].split(",") for need in needs_of(name)] if included else [line]
    return lines


def names(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[^\w.-]", line)[0]) for line in requirements}


PINS = {canonical(name): pin for name, pin in re.findall(r"^([\w.-]+)==(\S+)", CONSTRAINTS, re.MULTILINE)}


def test_every_dependency_is_pinned_and_installed_in_that_version() -> None:
    lines = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line) for line in lines)
    assert names([*PROJECT["dependencies"], *needs_of("dev")]) <= PINS.keys()
    present = [*PROJECT["dependencies"], *needs_of("test")]
    installed = names([line for line in present if "; " not in line])
    assert {name: version(name).partition("+")[0] for name in installed} == {name: PINS[name] for name in installed}


def test_every_dependency_is_locked_in_the_pinned_version_and_with_a_hash() -> None:
    assert {*names(PROJECT["dependencies"]), "hatchling", "hatch-vcs", "async-timeout"} <= LOCKED.keys()
    assert {name: PINS.get(name, pin) for name, pin in LOCKED.items()} == LOCKED
    entry = re.compile(r"[\w-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    assert entry.sub("", LOCK).startswith("# Made by `make lock`")
    assert entry.sub("", LOCK).count("\n") == 1, "a line that is neither a version nor a hash"


def test_wheels_of_the_folder_are_listed_with_their_hashes(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"some bytes")
    command = [sys.executable, str(ROOT / "deploy/image/list_wheels.py"), str(tmp_path)]
    (line,) = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    link = re.fullmatch(r'<a href="(\S+)#sha256=(\w+)">(\S+)</a>', line)
    assert (Path(unquote(urlsplit(link[1]).path)), link[3]) == (wheel, wheel.name)
    assert link[2] == hashlib.sha256(b"some bytes").hexdigest()


def test_the_image_installs_only_by_hash() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"(?:pip install|\$locked) [^;&]*", dockerfile)
    by_version = [line.strip() for line in installs if "--require-hashes" not in line and "$locked" not in line]
    # CUDA's libraries where lock.cuda.txt is missing, and our own package, whose files were copied.
    assert by_version == ["pip install -c image/constraints.txt torch", "pip install --no-deps --no-build-isolation ."]
