"""Build Ray's `runtime_env`: the code that a run uploads to a cluster."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from actors.errors import UserError
from actors.own_module import add_working_directory
from deploy.config.schema import Config

OURS = ("actors", "learner", "deploy", "tamiyo")


def runtime_env(config: Config) -> dict[str, Any]:
    """Return the runtime environment; empty for `run.ship: image`. Raises `UserError` if a user module is not found."""
    if config.run.ship == "image":
        return {}
    named = (*config.env.tasks, config.gym.id, *config.gym.wrappers)  # of the user's, where they have a colon
    theirs = {name.partition(":")[0].partition(".")[0] for name in named if ":" in name}
    modules = [_module_path(name) for name in (*OURS, *sorted(theirs - set(OURS)))]
    return {"py_modules": modules, "excludes": ["__pycache__"]}


def _module_path(module: str) -> str:
    add_working_directory()
    spec = find_spec(module)
    if spec is None or not (spec.submodule_search_locations or spec.origin):
        raise UserError(f"run.ship needs module {module!r}, but it was not found: install it, or run from its folder")
    return str(next(iter(spec.submodule_search_locations)) if spec.submodule_search_locations else spec.origin)
