"""`Fleet`: the interface of E environments stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.env.episode.timeline import Timeline
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces


class Fleet(Protocol):
    """E environments that are reset together. One whose episode ends early idles until the next reset."""

    env_id: str
    spaces: Spaces
    num_envs: int

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
