"""`Fleet`: the interface of E environments stepped together; and `ReferenceFleet`, a loop over one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.env import SeedTrainingEnv
from actors.env.rendering.timeline import Timeline
from actors.types.actions import ActionMasks
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces


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


class ReferenceFleet:
    """A `Fleet` that steps one `SeedTrainingEnv` after the other."""

    env_id = "tamiyo/SeedTraining-v0"

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int, device: torch.device | str = "cpu") -> None:
        self.envs = [SeedTrainingEnv(config, run_seed, device=device) for _ in range(num_envs)]
        self.spaces = self.envs[0].spaces
        self.num_envs, self.rent_share = num_envs, 1.0

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        self._running = [True] * self.num_envs
        self._last: list[tuple[dict[str, NDArray[Any]], dict[str, Any]]] = []
        for env, seed in zip(self.envs, seeds, strict=True):
            self._last.append(env.reset(seed=int(seed), options={"rent_share": self.rent_share}))
        return self._gather([0.0] * self.num_envs, [False] * self.num_envs, [False] * self.num_envs)

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        rewards, terminated, truncated = [0.0] * self.num_envs, [False] * self.num_envs, [False] * self.num_envs
        for e, env in enumerate(self.envs):
            if not self._running[e]:
                continue
            obs, reward, terminated[e], truncated[e], info = env.step(actions[e])
            rewards[e] = float(reward)
            self._last[e] = (obs, info)
            self._running[e] = not (terminated[e] or truncated[e])
        return self._gather(rewards, terminated, truncated)

    def task_ids(self) -> tuple[str, ...]:
        return tuple(env.task.task_id for env in self.envs)

    def timelines(self) -> tuple[Timeline, ...]:
        return tuple(env.timeline for env in self.envs)

    def _gather(self, rewards: list[float], terminated: list[bool], truncated: list[bool]) -> FleetStep:
        ended = [a or b for a, b in zip(terminated, truncated, strict=True)]
        infos = [info for _, info in self._last]
        masks = [info["masks"] for info in infos]
        return FleetStep(
            np.stack([obs["obs"] for obs, _ in self._last]),
            np.stack([obs["blueprint_indices"] for obs, _ in self._last]),
            ActionMasks(
                np.stack([m.op for m in masks]), np.stack([m.slot for m in masks]), np.stack([m.rest for m in masks])
            ),
            np.array(rewards, dtype=np.float32),
            np.array(terminated),
            np.array(truncated),
            tuple(info["end_reason"] if end else None for info, end in zip(infos, ended, strict=True)),
            tuple(info["telemetry"] if end else {} for info, end in zip(infos, ended, strict=True)),
        )
