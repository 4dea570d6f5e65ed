"""Build a vector environment from `GymConfig`, with a clear message for each configuration error."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator, registry
from gymnasium.vector import AutoresetMode, VectorEnv

from actors.config import ConfigError, GymConfig
from actors.config.gym import make_arguments
from actors.env.gym.spaces import GymSpaces
from actors.errors import UserError, described
from actors.types.spaces import Spaces

AnyEnv = gymnasium.Env[Any, Any]
Wrap = Callable[[AnyEnv], AnyEnv]


class MaskInInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Unifies both conventions for action masks as `info["action_mask"]`, flat and bool.

    `info["action_mask"]`, Gymnasium's convention, takes precedence over the method `action_masks()` of sb3-contrib. An
    environment with neither has no masks.
    """

    def __init__(self, env: AnyEnv, env_id: str) -> None:
        super().__init__(env)
        self._spaces = GymSpaces(env_id, env.observation_space, env.action_space)
        self._method = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._with_mask(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._with_mask(info)

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get("action_mask")
        if mask is None and self._method is not None:
            mask = self._method()
        # Other infos are not used; passing them on would only cost copies.
        return {} if mask is None else {"action_mask": self._spaces.flat_mask(mask)}


def make_vector_env(config: GymConfig, num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Create the vector environment. Raises `UserError` for what is wrong with its name or its arguments, and whatever
    else its constructor raises.

    `sync` and `async` environments are reset explicitly, each episode with its own seed; `own` environments follow
    their own autoreset mode.
    """
    wrappers = [*(_load_wrapper(name) for name in config.wrappers), partial(MaskInInfo, env_id=config.id)]
    mode = {"sync": "sync", "async": "async", "own": "vector_entry_point"}[config.vectorization]
    seeded = {"wrappers": wrappers, "vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}}
    options: dict[str, Any] = {} if mode == "vector_entry_point" else seeded
    _check_id(config.id)
    try:
        return gymnasium.make_vec(config.id, num_envs, mode, **options, **make_arguments(config.kwargs))
    except (gymnasium.error.Error, TypeError, ImportError, SystemExit) as error:
        raise UserError(f"cannot make {config.id}: {described(error)}") from error


def gym_spaces(config: GymConfig) -> Spaces:
    """Return the spaces of one environment. Raises `UserError` if it cannot be made or its spaces are unsupported."""
    try:
        env = make_vector_env(config, 1)
        try:
            return GymSpaces(config.id, env.single_observation_space, env.single_action_space, config.squash).spaces
        finally:
            env.close()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # in an actor, such an error may be transient
        raise UserError(f"cannot make {config.id}: {described(error)}") from error


def _load_wrapper(name: str) -> Wrap:
    try:
        return load_env_creator(name)  # type: ignore[return-value]
    except (Exception, SystemExit) as error:
        raise ConfigError(f"gym.wrappers: there is no {name} ({described(error)})") from error


def _check_id(env_id: str) -> None:
    """Import the module of the id and check that it is registered. Raises `UserError` with the closest known id."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_module(module)
        except (Exception, SystemExit) as error:
            raise UserError(f"cannot import {module!r} of gym.id {env_id}: {described(error)}") from error
    if name in registry:
        return
    close = difflib.get_close_matches(name, list(registry), n=1, cutoff=0.5) or _match_ignoring_case(name)
    hint = f"did you mean {close[0]}?" if close else "to import the package that registers it, write mypkg:MyEnv-v0"
    raise UserError(f"there is no Gymnasium environment {name!r}; {hint}")


def _match_ignoring_case(name: str) -> list[str]:
    folded = {known.lower(): known for known in registry}
    return [folded[c] for c in difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.5)]
