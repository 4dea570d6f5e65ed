"""Build a vector environment from `GymConfig`, with a clear message for each configuration error."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator, registry
from gymnasium.vector import AutoresetMode, VectorEnv

from actors.config import ConfigError, GymConfig
from actors.env.gym.own_dtype import OwnDtype
from actors.env.gym.spaces import GymSpaces
from actors.env.gym.unified import AnyEnv, UnifiedEnv, close_quietly
from actors.errors import UserError
from actors.types.spaces import Spaces

Wrap = Callable[[AnyEnv], AnyEnv]


def make_vector_env(
    config: GymConfig, num_envs: int, heartbeat: Callable[[], None] = lambda: None
) -> VectorEnv[Any, Any, Any]:
    """Create the vector environment. Raises `UserError`.

    `heartbeat` is called after each constructor, reset and step of a single environment, unless it has a process of its
    own. `sync` and `async` environments are reset explicitly, each episode with its own seed; `own` environments follow
    their own autoreset mode.
    """
    kwargs = parse_kwargs(config.kwargs)
    _check_id(config.id)
    with ExitStack() as unfinished:  # closes the first environments if a later one cannot be made

        def unified(env: AnyEnv) -> AnyEnv:
            if config.vectorization == "sync":
                unfinished.callback(close_quietly, env)
            return UnifiedEnv(env, config.id, heartbeat)

        wrappers = [*(_load_wrapper(name) for name in config.wrappers), unified]
        mode = {"sync": "sync", "async": "async", "own": "vector_entry_point"}[config.vectorization]
        seeded = {"wrappers": wrappers, "vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}}
        options: dict[str, Any] = {} if mode == "vector_entry_point" else seeded
        try:
            vector = OwnDtype(lambda: gymnasium.make_vec(config.id, num_envs, mode, **options, **kwargs))
        except (gymnasium.error.Error, TypeError, ModuleNotFoundError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"cannot make {config.id}: {reason}") from error
        unfinished.pop_all()
        return vector


def gym_spaces(config: GymConfig) -> Spaces:
    """Return the spaces of one environment. Raises `UserError` if it does not exist or its spaces are unsupported."""
    env = make_vector_env(config, 1)
    try:
        return GymSpaces(config.id, env.single_observation_space, env.single_action_space, config.squash).spaces
    finally:
        env.close()


def parse_kwargs(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse `name=value` pairs. A value that is not valid JSON is a string."""
    parsed: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            parsed[name] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name] = value
    return parsed


def _load_wrapper(name: str) -> Wrap:
    try:
        return load_env_creator(name)  # type: ignore[return-value]
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"gym.wrappers: there is no {name} ({error})") from error


def _check_id(env_id: str) -> None:
    """Import the module of the id and check that it is registered. Raises `UserError` with the closest known id."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(f"cannot import {module!r} of gym.id {env_id}: {error}") from error
    if name in registry:
        return
    close = difflib.get_close_matches(name, list(registry), n=1, cutoff=0.5) or _match_ignoring_case(name)
    hint = f"did you mean {close[0]}?" if close else "to import the package that registers it, write mypkg:MyEnv-v0"
    raise UserError(f"there is no Gymnasium environment {name!r}; {hint}")


def _match_ignoring_case(name: str) -> list[str]:
    folded = {known.lower(): known for known in registry}
    return [folded[c] for c in difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.5)]
