"""`SeedTrainingFleet`: E seed-training environments as one tensor program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from actors.actions import ActionMasks
from actors.config import EnvConfig
from actors.env.env import check_tasks, seed_spaces
from actors.env.fleet import Fleet, FleetStep, ReferenceFleet
from actors.env.fleet_networks import make_networks
from actors.env.growing import Optimisation
from actors.env.host_episode import HostEpisode
from actors.env.rng import Purpose, stream
from actors.env.tasks import make_task
from actors.env.timeline import Timeline
from actors.episode import EndReason


class SeedTrainingFleet:
    """What `ReferenceFleet` is, many times faster. Different tasks share one padded shape."""

    env_id = "tamiyo/SeedTraining-v0"

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        run_seed: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        check_tasks(config, run_seed)
        self.config, self.num_envs, self.run_seed = config, num_envs, run_seed
        self.spaces = seed_spaces(config.slots)
        self.episodes: list[HostEpisode] = []
        tasks = [make_task(name, stream(run_seed, 0, Purpose.TASK_DATA)) for name in config.tasks]
        max_steps = config.horizon_epochs * config.inner_steps
        optimisation = Optimisation(config.host_lr, config.seed_lr, config.weight_decay, config.clip_norm)
        self.networks = make_networks(
            tasks, config.slots, num_envs, max_steps, optimisation, dtype, torch.device(device)
        )

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        self.episodes = [HostEpisode(self.config, self.run_seed, int(s), self.spaces.action) for s in seeds]
        for episode, untrained in zip(self.episodes, self.networks.reset(self.episodes), strict=True):
            episode.begin(untrained)
        self._running = np.ones(self.num_envs, dtype=np.bool_)
        self._seen = [(episode.observation(), episode.masks()) for episode in self.episodes]
        nothing = np.zeros(self.num_envs)
        return self._step(nothing, nothing > 0, [None] * self.num_envs, [{}] * self.num_envs)

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        n = self.num_envs
        orders = [ep.decide(actions[e])[0] if self._running[e] else None for e, ep in enumerate(self.episodes)]
        results = self.networks.run_epoch(orders)
        rewards, terminated = np.zeros(n), np.zeros(n, dtype=np.bool_)
        reasons: list[EndReason | None] = [None] * n
        telemetry: list[dict[str, float]] = [{} for _ in range(n)]
        pruned: list[tuple[int, ...]] = [()] * n
        for e, (episode, order, result) in enumerate(zip(self.episodes, orders, results, strict=True)):
            if order is None or result is None:
                continue
            outcome = episode.settle(order, result, lambda slots, e=e: self.networks.roll_back(e, slots))  # type: ignore[misc]
            rewards[e], terminated[e], pruned[e] = outcome.reward, outcome.terminated, outcome.pruned
            reasons[e], telemetry[e] = outcome.end_reason, outcome.telemetry
            self._seen[e] = (episode.observation(), episode.masks())
        self.networks.finish_epoch(pruned)
        self._running &= ~terminated
        return self._step(rewards, terminated, reasons, telemetry)

    def task_ids(self) -> tuple[str, ...]:
        return tuple(episode.task.task_id for episode in self.episodes)

    def timelines(self) -> tuple[Timeline, ...]:
        return tuple(episode.timeline for episode in self.episodes)

    def _step(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        reasons: list[EndReason | None],
        telemetry: list[dict[str, float]],
    ) -> FleetStep:
        masks = [mask for _, mask in self._seen]
        slot = [m.slot for m in masks if m.slot is not None]
        return FleetStep(
            np.stack([obs["obs"] for obs, _ in self._seen]),
            np.stack([obs["blueprint_indices"] for obs, _ in self._seen]),
            ActionMasks(np.stack([m.op for m in masks]), np.stack(slot), np.stack([m.rest for m in masks])),
            rewards.astype(np.float32),
            terminated,
            np.zeros_like(terminated),
            tuple(reasons),
            tuple(telemetry),
        )


def make_fleet(config: EnvConfig, num_envs: int, run_seed: int) -> Fleet:
    """The fast fleet; the reference's loop for the one option that only it has."""
    if config.isolation == "straight_through":
        return ReferenceFleet(config, num_envs, run_seed)
    return SeedTrainingFleet(config, num_envs, run_seed)
