"""Conversion of Gymnasium spaces to flat observations, independent heads and flat masks."""

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
    """Converts observations, actions and masks of one environment. Raises `UserError` for unsupported spaces."""

    def __init__(self, env_id: str, observation: Space[Any], action: Space[Any]) -> None:
        if not observation.is_np_flattenable:
            raise UserError(
                f"the observation space of {env_id} is {type(observation).__name__}, which has no fixed size: wrap it "
                "so that it is Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
            )
        self.env_id, self.observation, self.action = env_id, observation, action
        self.spaces = Spaces.flat(independent_spec(_sizes(env_id, action)), flatdim(observation))
        self._start = np.asarray(action.start, dtype=np.int64).reshape(-1)  # type: ignore[attr-defined]

    def flat_obs(self, obs: Any) -> NDArray[np.float32]:
        """Flatten one observation to `[D]`."""
        return np.asarray(flatten(self.observation, obs), dtype=np.float32)

    def flat_batch(self, obs: Any, num_envs: int) -> NDArray[np.float32]:
        """Flatten a vector environment's observation to `[E, D]`. Always copies."""
        if isinstance(self.observation, spaces.Box):
            return np.array(obs, dtype=np.float32).reshape(num_envs, -1)
        rows = iterate(batch_space(self.observation, num_envs), obs)
        return np.stack([self.flat_obs(row) for row in rows])

    def env_actions(self, actions: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
        """Convert `actions [E, H]`, which count from 0, to the actions of a vector environment."""
        dtype = self.action.dtype or np.dtype(np.int64)
        shifted = (actions + self._start).astype(dtype)
        return shifted[:, 0] if isinstance(self.action, spaces.Discrete) else shifted.reshape(-1, *self.action.shape)  # type: ignore[misc]

    def flat_mask(self, mask: Any) -> NDArray[np.bool_]:
        """Flatten one mask to `[A]`: a flat one (sb3-contrib for MultiDiscrete) or one array per head (Gymnasium)."""
        parts = [np.ravel(part) for part in mask] if isinstance(mask, tuple | list) else [np.ravel(mask)]
        flat = np.concatenate(parts).astype(np.bool_)
        if flat.size != self.spaces.action.flat_size:
            raise UserError(
                f"{self.env_id} gave an action mask of {flat.size} entries for heads of "
                f"{list(self.spaces.action.sizes)}: give one entry per choice, the heads of a MultiDiscrete space "
                "concatenated"
            )
        return flat


def _sizes(env_id: str, action: Space[Any]) -> tuple[int, ...]:
    if isinstance(action, spaces.Discrete):
        return (int(action.n),)
    if isinstance(action, spaces.MultiDiscrete):
        return tuple(map(int, np.ravel(action.nvec)))
    kind = "continuous actions (Box)" if isinstance(action, spaces.Box) else f"{type(action).__name__} actions"
    raise UserError(f"{env_id} takes {kind}: only Discrete and MultiDiscrete action spaces are supported")
