"""The installed version of Tamiyo."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed() -> str:
    """Return its name and version."""
    try:
        return f"tamiyo {version('tamiyo')}"
    except PackageNotFoundError:
        return "tamiyo (not installed)"
