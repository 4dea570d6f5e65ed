"""`Fleet`: the interface of E environments stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.env.episode.timeline import Timeline
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason
from actors.types.spaces import Spaces


class FleetStep(NamedTuple):
    """What E environments return from one step. Environments that ended earlier repeat their last observation."""

    obs: NDArray[np.float32]  # [E, D]
    blueprint_indices: NDArray[np.int64]  # [E, S]
    masks: ActionMasks  # [E, ...]
    rewards: NDArray[np.float32]  # [E], 0 after a reset
    terminated: NDArray[np.bool_]  # [E], True in the step that ends an episode
    truncated: NDArray[np.bool_]  # [E], True in the step that cuts an episode off
    end_reasons: tuple[EndReason | None, ...]  # [E]
    telemetry: tuple[dict[str, float], ...]  # [E], empty unless the episode ended with this step

    def observation(self, env: int) -> dict[str, NDArray[Any]]:
        """Return the observation of one environment, as Gymnasium's."""
        return {"obs": self.obs[env], "blueprint_indices": self.blueprint_indices[env]}


class Fleet(Protocol):
    """E environments that are reset together. One whose episode ends early idles until the next reset."""

    env_id: str
    spaces: Spaces
    num_envs: int
    rent_share: float  # fraction of the rent that rewards charge, in episodes that start from now on

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        """Start an episode in every environment, from `seeds` `[E]`."""
        ...

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        """Take `actions` `[E, H]`, one row of H heads per environment; rows of ended environments are ignored."""
        ...

    def task_ids(self) -> tuple[str, ...]:
        """Return the task of each environment's episode."""
        ...

    def timelines(self) -> tuple[Timeline, ...]:
        """Return the record of each environment's episode so far."""
        ...
