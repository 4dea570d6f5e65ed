"""Build a vector environment from `GymConfig`, with a clear message for each configuration error."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import gymnasium
import torch
from gymnasium.envs.registration import load_env_creator, registry
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from actors.config import ConfigError, GymConfig
from actors.config.gym import make_arguments
from actors.errors import UserError, described
from actors.gym.spaces import GymSpaces
from actors.gym.unified import AnyEnv, UnifiedEnv, close_quietly
from actors.own_module import add_working_directory, import_own

T = TypeVar("T")
Wrap = Callable[[AnyEnv], AnyEnv]


def make_vector_env(
    config: GymConfig, num_envs: int, heartbeat: Callable[[], None] = lambda: None
) -> VectorEnv[Any, Any, Any]:
    """Create the vector environment. Raises `UserError` for what is wrong with its name or its arguments, and whatever
    else its constructor raises.

    `heartbeat` is called after each constructor, reset and step of a single environment, unless it has a process of its
    own. `sync` and `async` environments are reset explicitly, each episode with its own seed; `own` environments follow
    their own autoreset mode.
    """
    wrappers, arguments = _parts(config)
    with ExitStack() as unfinished:  # closes the first environments if a later one cannot be made

        def unified(env: AnyEnv) -> AnyEnv:
            if config.vectorization == "sync":
                unfinished.callback(close_quietly, env)
            return UnifiedEnv(env, config.id, heartbeat)

        mode = {"sync": "sync", "async": "async", "own": "vector_entry_point"}[config.vectorization]
        seeded = {"wrappers": [*wrappers, unified], "vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}}
        options: dict[str, Any] = {} if mode == "vector_entry_point" else seeded
        try:
            vector = OwnDtype(lambda: gymnasium.make_vec(config.id, num_envs, mode, **options, **arguments))
        except (gymnasium.error.Error, TypeError, ImportError, SystemExit) as error:
            raise UserError(f"cannot make {config.id}: {described(error)}") from error
        unfinished.pop_all()
        return vector


def gym_converter(config: GymConfig) -> GymSpaces:
    """Return what converts the observations, actions and masks of one environment. Raises `UserError` if it cannot be
    made or its spaces are unsupported."""
    try:
        env = make_vector_env(config, 1)
        try:
            return GymSpaces(config.id, env.single_observation_space, env.single_action_space, config.squash)
        finally:
            env.close()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # in an actor, such an error may be transient
        raise UserError(f"cannot make {config.id}: {described(error)}") from error


def make_single_env(config: GymConfig, **arguments: Any) -> UnifiedEnv:
    """Create one environment with its wrappers; `arguments` are added to those of its configuration. Raises
    `UserError`."""
    wrappers, given = _parts(config, **arguments)
    try:
        env = gymnasium.make(config.id, **given)
        for wrap in wrappers:
            env = wrap(env)
        return UnifiedEnv(env, config.id)
    except (Exception, SystemExit) as error:
        raise UserError(f"cannot make {config.id}: {described(error)}") from error


def gym_horizon(config: GymConfig) -> int | None:
    """Return the time limit of an environment that can be made, in steps; None if it has none that is known."""
    limit = make_arguments(config.kwargs).get("max_episode_steps")
    if limit is None:
        _check_id(config.id)
        limit = registry[config.id.rpartition(":")[2]].max_episode_steps
    return limit if limit is not None and limit > 0 else None


def _parts(config: GymConfig, **more: Any) -> tuple[list[Wrap], dict[str, Any]]:
    """Return the wrappers of each environment, innermost first, and the arguments of its constructor. Raises
    `UserError` for a name that does not exist."""
    wrappers, arguments = list(map(_load_wrapper, config.wrappers)), make_arguments(config.kwargs) | more
    _check_id(config.id)
    return wrappers, arguments


def _load_wrapper(name: str) -> Wrap:
    add_working_directory()
    try:
        return load_env_creator(name)  # type: ignore[return-value]
    except (Exception, SystemExit) as error:
        raise ConfigError(f"gym.wrappers: there is no {name} ({described(error)})") from error


def _check_id(env_id: str) -> None:
    """Import the module of the id and check that it is registered. Raises `UserError` with the closest known id."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_own(module)
        except (Exception, SystemExit) as error:
            raise UserError(f"cannot import {module!r} of gym.id {env_id}: {described(error)}") from error
    if name in registry:
        return
    folded = {known.lower(): known for known in registry}
    hint = "to import the package that registers it, write mypkg:MyEnv-v0"
    for close in difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5):
        hint = f"did you mean {folded[close]}?"
    raise UserError(f"there is no Gymnasium environment {name!r}; {hint}")


class OwnDtype(VectorWrapper):
    """A vector environment for which PyTorch's default dtype is what it last set itself, and only while it runs."""

    def __init__(self, make: Callable[[], VectorEnv[Any, Any, Any]]) -> None:
        self._theirs = torch.get_default_dtype()
        super().__init__(self._run(make))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._run(lambda: self.env.reset(seed=seed, options=options))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._run(lambda: self.env.step(actions))

    def close(self, **kwargs: Any) -> None:
        self._run(lambda: self.env.close(**kwargs))

    def _run(self, call: Callable[[], T]) -> T:
        ours = torch.get_default_dtype()
        if self._theirs is not ours:
            torch.set_default_dtype(self._theirs)
        try:
            return call()
        finally:
            self._theirs = torch.get_default_dtype()
            if self._theirs is not ours:
                torch.set_default_dtype(ours)
