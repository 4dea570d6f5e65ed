"""What a run on a cluster brings along, so that machines whose image lacks it can take part: Ray's `runtime_env`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from actors.errors import UserError
from deploy.config.schema import Config

OURS = ("actors", "learner", "deploy", "tamiyo")
NOT_SHIPPED = ("ray",)  # it is there, and must be the same as here


def runtime_env(config: Config) -> dict[str, Any]:
    """Empty with `run.ship: image`. Raises `UserError` for a module of the user's that is not found here."""
    if config.run.ship == "image":
        return {}
    modules = [_place(name) for name in (*OURS, *sorted(set(_users_own(config)) - set(OURS)))]
    environment: dict[str, Any] = {"py_modules": modules, "excludes": ["__pycache__"]}
    if config.run.ship == "pins":
        environment["pip"] = {"packages": pins(), "pip_check": False}
    return environment


def pins() -> list[str]:
    """All that we need, directly or not, as it is installed here: `name==version`, sorted."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("tamiyo", "")]  # a package, and one of its extras
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen or name in NOT_SHIPPED:
            continue
        seen.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:  # not needed on this platform
            continue
        found[name] = Version(package.version).public  # without a build of torch's: +cu130 is on no index
        for needed in map(Requirement, package.requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), e) for e in ("", *needed.extras)]
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name != "tamiyo"]


def _users_own(config: Config) -> Iterator[str]:
    """Top-level modules of the user's tasks, environment and wrappers."""
    for name in (*config.env.tasks, config.gym.id, *config.gym.wrappers):
        module, colon, _ = name.partition(":")
        if colon:
            yield module.partition(".")[0]


def _place(module: str) -> str:
    """Folder of a package, or file of a module."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    spec = find_spec(module)
    if spec is None or not (spec.submodule_search_locations or spec.origin):
        raise UserError(f"run.ship is to bring module {module!r} along, but it is not found here")
    return str(next(iter(spec.submodule_search_locations)) if spec.submodule_search_locations else spec.origin)
