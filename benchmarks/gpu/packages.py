"""The packages of deploy/gpu-requirements.txt: which are missing, and installing those beside the caller's Python.

They go into a folder of their own, on PYTHONPATH before the caller's packages, so that its Python stays as it is and
its PyTorch with CUDA is never replaced by another.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "deploy" / "gpu-requirements.txt"
INSTALL_S = 120.0


def packages_dir() -> Path:
    """Return the folder for packages that the caller's Python lacks, of its version."""
    return ROOT / ".gpu" / f"packages-{sys.version_info.major}.{sys.version_info.minor}"


def required() -> dict[str, str]:
    """Return the lowest version of each package by its name, as they are written."""
    lines = (line.strip() for line in REQUIREMENTS.read_text().splitlines())
    return {name: version for line in lines if line and line[0] != "#" for name, version in (line.split(">="),)}


def normalized(name: str) -> str:
    """Return a distribution's name in the form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return the versions of all packages by normalized name, those in `packages_dir` first."""
    found: dict[str, str] = {}
    for own in distributions(path=[str(packages_dir()), *sys.path]):
        found.setdefault(normalized(own.metadata["Name"]), own.version)
    return found


def missing(wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the names of the packages that are absent, or older than `wanted`."""
    return [
        name
        for name, version in wanted.items()
        if normalized(name) not in present or _numbers(present[normalized(name)]) < _numbers(version)
    ]


def install(names: list[str], wanted: Mapping[str, str], wheels: Path | None) -> str:
    """Install all of these packages or none, from the folder `wheels` if it is given. Return pip's error, or ""."""
    source = ["--retries", "0", "--timeout", "10"]
    if wheels is not None:
        source = ["--no-index", "--find-links", str(wheels.resolve())]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--no-compile", "--upgrade", "--target", str(packages_dir()), *source]
    command += [f"{name}>={wanted[name]}" for name in names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"pip took more than {INSTALL_S:g} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
    return lines[-1] if lines else f"pip ended with status {done.returncode}"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: enough to compare releases."""
    found = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found[1].split("."))) if found else ()
