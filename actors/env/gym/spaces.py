"""Gymnasium's spaces as the policy sees them: a flat float vector, independent heads, one flat mask."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from actors.errors import UserError
from actors.types.actions import independent_spec
from actors.types.spaces import Spaces


class GymSpaces:
    """Both spaces of one environment, and the way in and out of them. Raises `UserError` for what cannot be trained."""

    def __init__(self, env_id: str, observation: Space[Any], action: Space[Any]) -> None:
        if not observation.is_np_flattenable:
            raise UserError(
                f"{env_id} observes {type(observation).__name__}, which has no fixed size: wrap it so that it observes "
                "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them"
            )
        self.env_id, self.observation, self.action = env_id, observation, action
        self.spaces = Spaces.flat(independent_spec(_sizes(env_id, action)), flatdim(observation))
        self._start = np.asarray(action.start, dtype=np.int64).reshape(-1)  # type: ignore[attr-defined]

    def flat_obs(self, obs: Any) -> NDArray[np.float32]:
        """`[D]` of one observation."""
        return np.asarray(flatten(self.observation, obs), dtype=np.float32)

    def flat_batch(self, obs: Any, num_envs: int) -> NDArray[np.float32]:
        """`[E, D]` of a vector environment's observation; always a copy."""
        if isinstance(self.observation, spaces.Box):
            return np.array(obs, dtype=np.float32).reshape(num_envs, -1)
        rows = iterate(batch_space(self.observation, num_envs), obs)
        return np.stack([self.flat_obs(row) for row in rows])

    def env_actions(self, actions: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
        """What a vector environment steps with, from `actions [E, H]` counted from 0."""
        dtype = self.action.dtype or np.dtype(np.int64)
        shifted = (actions + self._start).astype(dtype)
        return shifted[:, 0] if isinstance(self.action, spaces.Discrete) else shifted.reshape(-1, *self.action.shape)  # type: ignore[misc]

    def flat_mask(self, mask: Any) -> NDArray[np.bool_]:
        """`[A]` of one mask: flat (sb3-contrib's for MultiDiscrete), or one array per head (Gymnasium's own)."""
        parts = [np.ravel(part) for part in mask] if isinstance(mask, tuple | list) else [np.ravel(mask)]
        flat = np.concatenate(parts).astype(np.bool_)
        if flat.size != self.spaces.action.flat_size:
            raise UserError(
                f"{self.env_id} gave an action mask of {flat.size} entries for heads of "
                f"{list(self.spaces.action.sizes)}: a mask has one entry per choice, those of a MultiDiscrete one head "
                "after the other"
            )
        return flat


def _sizes(env_id: str, action: Space[Any]) -> tuple[int, ...]:
    if isinstance(action, spaces.Discrete):
        return (int(action.n),)
    if isinstance(action, spaces.MultiDiscrete):
        return tuple(map(int, np.ravel(action.nvec)))
    kind = "continuous actions (Box)" if isinstance(action, spaces.Box) else f"{type(action).__name__} actions"
    raise UserError(f"{env_id} takes {kind}: only Discrete and MultiDiscrete action spaces can be trained")
