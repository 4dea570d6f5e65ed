"""Conversion of Gymnasium spaces to flat observations, independent heads and flat masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from actors.errors import UserError
from actors.types.actions import Head, continuous_values, independent_spec
from actors.types.spaces import Spaces

MASK = "action_mask"


class GymSpaces:
    """Converts observations, actions and masks of one environment. Raises `UserError` for unsupported spaces."""

    def __init__(self, env_id: str, observation: Space[Any], action: Space[Any], squash: bool = False) -> None:
        if not observation.is_np_flattenable:
            raise UserError(
                f"the observation space of {env_id} is {type(observation).__name__}, which has no fixed size: wrap it "
                "so that it is Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
            )
        if has_mask(observation):
            raise UserError(
                f"the observation of {env_id} holds an {MASK} in a place where it would be ignored: give it at the top "
                f'level of the observation of a single environment, or as info["{MASK}"]'
            )
        self.env_id, self.observation, self.action = env_id, observation, action
        self._leaves = list(_leaves(env_id, action))
        sizes, boxes = list[int](), list[Head]()
        for name, leaf in self._leaves:
            if isinstance(leaf, spaces.Box):
                boxes += _dimensions(name, leaf, squash)
            else:
                choices = leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec  # type: ignore[attr-defined]
                sizes += np.ravel(choices).tolist()
        try:
            self.spaces = Spaces.flat(independent_spec(sizes, boxes), int(flatdim(observation)))
        except ValueError as error:
            raise UserError(f"the spaces of {env_id} are too large ({error}): wrap it") from error
        self._has_choices = bool(sizes)

    def flat_obs(self, obs: Any) -> NDArray[np.float32]:
        """Flatten one observation to `[D]`."""
        return np.asarray(flatten(self.observation, obs), dtype=np.float32)

    def flat_batch(self, obs: Any, num_envs: int) -> NDArray[np.float32]:
        """Flatten a vector environment's observation to `[E, D]`. Always copies."""
        if isinstance(self.observation, spaces.Box):
            return np.array(obs, dtype=np.float32).reshape(num_envs, -1)
        rows = iterate(batch_space(self.observation, num_envs), obs)
        return np.stack([self.flat_obs(row) for row in rows])

    def env_actions(self, actions: NDArray[np.int64]) -> Any:
        """Convert `actions [E, H]`, whose choices count from 0, to the actions of a vector environment: an array, or a
        dict or tuple of arrays, as the action space is."""
        spec = self.spaces.action
        values = iter(continuous_values(spec, actions).T)
        choices = iter(actions[:, : spec.num_categorical].T)
        arrays = [_take(leaf, values if isinstance(leaf, spaces.Box) else choices) for _, leaf in self._leaves]
        return _nest(self.action, iter(arrays))

    def env_action(self, action: NDArray[np.int64]) -> Any:
        """Convert one action `[H]` to that of a single environment."""
        return next(iterate(batch_space(self.action), self.env_actions(action[None])))

    def flat_mask(self, mask: Any) -> NDArray[np.bool_]:
        """Flatten one mask to `[A]`: a flat one (sb3-contrib for MultiDiscrete) or one array per head (Gymnasium)."""
        parts = [np.ravel(part) for part in mask] if isinstance(mask, tuple | list) else [np.ravel(mask)]
        flat = np.concatenate([*parts, ()]).astype(np.bool_)
        spec, dimensions = self.spaces.action, self.spaces.action.num_continuous
        sizes = spec.sizes
        if not self._has_choices:
            sizes = sizes[1:]  # the first head has the only choice of a space without any
            if flat.size in (0, dimensions):
                flat = np.append(True, flat)
        if dimensions and flat.size == spec.flat_size - dimensions:
            flat = np.append(flat, np.ones(dimensions, dtype=np.bool_))  # masks are of choices alone
        if flat.size != spec.flat_size:
            raise UserError(
                f"{self.env_id} gave an action mask of {flat.size} entries for heads of {list(sizes)}: give one entry "
                "per choice, the heads of a MultiDiscrete space concatenated"
            )
        return flat


def _leaves(env_id: str, action: Space[Any], name: str = "") -> Iterator[tuple[str, Space[Any]]]:
    """Yield the parts of an action space with their names, in the order of Gymnasium's iteration."""
    if isinstance(action, spaces.Dict | spaces.Tuple):
        items = action.spaces.items() if isinstance(action, spaces.Dict) else enumerate(action.spaces)
        for key, part in items:
            yield from _leaves(env_id, part, f"{name}/{key}" if name else str(key))
    elif isinstance(action, spaces.Discrete | spaces.MultiDiscrete) or (
        isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating)
    ):
        yield name, action
    else:
        kind = "Box actions of whole numbers" if isinstance(action, spaces.Box) else f"{type(action).__name__} actions"
        raise UserError(
            f"{env_id} takes {kind}: only Discrete, MultiDiscrete, Box of floats, and a Dict or Tuple of these are "
            "supported"
        )


def has_mask(observation: Space[Any]) -> bool:
    """Return whether a Dict, at any depth, has an entry for a mask."""
    if isinstance(observation, spaces.Dict):
        return MASK in observation.spaces or any(map(has_mask, observation.spaces.values()))
    return isinstance(observation, spaces.Tuple) and any(map(has_mask, observation.spaces))


def _dimensions(name: str, box: spaces.Box, squash: bool) -> list[Head]:
    """Return one continuous head per dimension. Raises `UserError` if an unbounded one is to be squashed."""
    low, high = ([x if np.isfinite(x) else None for x in ends.ravel().tolist()] for ends in (box.low, box.high))
    if squash and None in low + high:
        raise UserError(f"gym.squash needs finite bounds, but the action space has {box}: set gym.squash to false")
    pairs = enumerate(zip(low, high, strict=True))
    return [Head(f"{name or 'box'}[{k}]", ("value",), bounds, squash) for k, bounds in pairs]


def _take(leaf: Space[Any], columns: Iterator[NDArray[Any]]) -> NDArray[Any]:
    """Return the batch `[E, ...]` of a part's actions from its columns `[E]`, which are the next ones."""
    shape: tuple[int, ...] = leaf.shape or ()
    values = np.stack([next(columns) for _ in range(int(np.prod(shape)))], axis=-1)
    if not isinstance(leaf, spaces.Box):
        values = values + np.ravel(leaf.start)  # type: ignore[attr-defined]
    return values.reshape(-1, *shape).astype(leaf.dtype or np.dtype(np.int64))


def _nest(action: Space[Any], arrays: Iterator[NDArray[Any]]) -> Any:
    """Arrange the parts' batches as the action space is."""
    if isinstance(action, spaces.Dict):
        return {key: _nest(part, arrays) for key, part in action.spaces.items()}
    if isinstance(action, spaces.Tuple):
        return tuple(_nest(part, arrays) for part in action.spaces)
    return next(arrays)
