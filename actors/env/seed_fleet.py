"""`SeedTrainingFleet`: E seed-training environments as one tensor program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig, require
from actors.env.env import check_tasks, seed_spaces
from actors.env.fleet import Fleet, FleetStep, ReferenceFleet
from actors.env.host_episode import EpochPlan, HostEpisode
from actors.env.kernels.cache import is_compiled, note_compiled
from actors.env.mixed_networks import make_networks
from actors.env.reference_network import OptimizerSettings
from actors.env.rendering.timeline import Timeline
from actors.env.slots.topology import Topology
from actors.env.stacked.parameters import NetworkSettings
from actors.env.twin import Trajectory, TwinCache, padded, twin_config
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason


class SeedTrainingFleet:
    """What `ReferenceFleet` is, many times faster. Different tasks share one padded shape."""

    env_id = "tamiyo/SeedTraining-v0"

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        run_seed: int,
        dtype: torch.dtype = torch.float32,
        read_test: bool = False,
    ) -> None:
        """`read_test`: an episode's telemetry ends with `test_accuracy`, which nothing before it can know."""
        tasks = check_tasks(config, run_seed)
        self.config, self.num_envs, self.run_seed, self.read_test = config, num_envs, run_seed, read_test
        self.rent_share = 1.0
        self.spaces = seed_spaces(config.slots, config.profile)
        self.episodes: list[HostEpisode] = []
        self._running = np.zeros(num_envs, dtype=np.bool_)
        self._seen: dict[int, tuple[dict[str, NDArray[Any]], ActionMasks]] = {}
        self.dtype, self.device = dtype, _device(config)
        settings = NetworkSettings(
            config.horizon_epochs * config.inner_steps,
            OptimizerSettings(config.host_lr, config.seed_lr, config.weight_decay, config.clip_norm),
            dtype,
            self.device,
            config.compile,
            config.cuda_graph and self.device.type == "cuda",
        )
        self.networks = make_networks(tasks, config.slots, num_envs, settings, config.backend)
        self._twins = TwinCache(self._play_twins)
        self._topologies: tuple[Topology, ...] = ((),) * num_envs

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        """A new wave: every environment starts an episode."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        return self.reset_envs(dict(enumerate(seeds)))

    def set_topologies(self, topologies: Sequence[Topology]) -> None:
        """Episodes that start from now on do so with hosts that are built with these, by environment."""
        if len(topologies) != self.num_envs:
            raise ValueError(f"{len(topologies)} topologies for {self.num_envs} environments")
        self._topologies = tuple(topologies)

    def reset_envs(self, seeds: Mapping[int, int]) -> FleetStep:
        """New episodes for these environments (env -> seed); the others stand where they stood, to the bit."""
        spec, built, share = self.spaces.action, self._topologies, self.rent_share
        new = {e: HostEpisode(self.config, self.run_seed, int(s), spec, built[e], share) for e, s in seeds.items()}
        if not self.episodes and len(new) < self.num_envs:
            raise ValueError("the first reset is of all environments")
        self.episodes = [new.get(e) or self.episodes[e] for e in range(self.num_envs)]
        untrained = self.networks.reset(self.episodes, list(new))
        twins = (
            self._twins.trajectories([ep.seed for ep in new.values()])
            if self.config.reference == "twin"
            else [()] * len(new)
        )
        for (e, episode), twin in zip(new.items(), twins, strict=True):
            episode.begin(untrained[e], twin)
            self._running[e] = True
            self._seen[e] = (episode.observation(), episode.masks())
        nothing = np.zeros(self.num_envs)
        return self._step(nothing, nothing > 0, nothing > 0, [None] * self.num_envs, [{}] * self.num_envs)

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        n = self.num_envs
        orders: list[EpochPlan | None] = [None] * n
        self.illegal: dict[int, str] = {}  # what was wrong with this step's actions, by environment
        for e in map(int, np.flatnonzero(self._running)):
            orders[e], reason = self.episodes[e].plan_epoch(actions[e])
            if reason:
                self.illegal[e] = reason
        results = self.networks.run_epoch(orders)
        rewards, terminated, truncated = np.zeros(n), np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
        reasons: list[EndReason | None] = [None] * n
        telemetry: list[dict[str, float]] = [{} for _ in range(n)]
        pruned: list[tuple[int, ...]] = [()] * n
        for e, (episode, order, result) in enumerate(zip(self.episodes, orders, results, strict=True)):
            if order is None or result is None:
                continue
            outcome = episode.complete_epoch(order, result, lambda slots, e=e: self.networks.roll_back(e, slots))  # type: ignore[misc]
            rewards[e], terminated[e], truncated[e] = outcome.reward, outcome.terminated, outcome.truncated
            pruned[e] = outcome.pruned
            reasons[e], telemetry[e] = outcome.end_reason, outcome.telemetry
            self._seen[e] = (episode.observation(), episode.masks())
        self.networks.commit(pruned)
        if self.read_test and (ended := np.flatnonzero(self._running & (terminated | truncated)).tolist()):
            on = {e: {g.slot: g.alpha for g in self.episodes[e].topology()} for e in ended}
            for e, (accuracy, _) in self.networks.test(on).items():
                telemetry[e]["test_accuracy"] = accuracy
        self._running &= ~(terminated | truncated)
        return self._step(rewards, terminated, truncated, reasons, telemetry)

    def task_ids(self) -> tuple[str, ...]:
        return tuple(episode.task.task_id for episode in self.episodes)

    def timelines(self) -> tuple[Timeline, ...]:
        return tuple(episode.timeline for episode in self.episodes)

    def _play_twins(self, seeds: Sequence[int]) -> list[Trajectory]:
        """All of them in one wave, beside this fleet's own hosts."""
        width = max(2, len(seeds))  # a batch of one has other bits
        fleet = SeedTrainingFleet(twin_config(self.config), width, self.run_seed, self.dtype)
        fleet.reset([*seeds, *[seeds[0]] * (width - len(seeds))])
        waits = np.zeros((width, len(self.spaces.action.heads)), dtype=np.int64)
        while fleet.running:
            fleet.step(waits)
        played = fleet.episodes[: len(seeds)]
        return [padded(episode.accuracies, episode.horizon_epochs) for episode in played]

    @property
    def running(self) -> bool:
        """Whether any environment's episode goes on."""
        return bool(self._running.any())

    def _step(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        reasons: list[EndReason | None],
        telemetry: list[dict[str, float]],
    ) -> FleetStep:
        seen = [self._seen[e] for e in range(self.num_envs)]
        masks = [mask for _, mask in seen]
        slot = [m.slot for m in masks if m.slot is not None]
        return FleetStep(
            np.stack([obs["obs"] for obs, _ in seen]),
            np.stack([obs["blueprint_indices"] for obs, _ in seen]),
            ActionMasks(np.stack([m.op for m in masks]), np.stack(slot), np.stack([m.rest for m in masks])),
            rewards.astype(np.float32),
            terminated,
            truncated,
            tuple(reasons),
            tuple(telemetry),
        )


def compile_kernels(dtype: torch.dtype = torch.float32) -> None:
    """Have the machine code for MLP hosts made and kept on disk: some twenty seconds, once per machine."""
    name = str(dtype).removeprefix("torch.")
    if is_compiled(name):
        return
    config = EnvConfig(tasks=("spirals",), horizon_epochs=1, inner_steps=1, device="cpu", backend="numba")
    fleet = SeedTrainingFleet(config, 1, 0, dtype)
    fleet.reset([0])
    fleet.step(np.zeros((1, len(fleet.spaces.action.heads)), dtype=np.int64))
    note_compiled(name)


def _device(config: EnvConfig) -> torch.device:
    present = torch.cuda.is_available()
    require(present or config.device != "cuda", "env.device is cuda, but PyTorch finds no CUDA device here")
    return torch.device("cuda" if present and config.device != "cpu" else "cpu")


def make_fleet(config: EnvConfig, num_envs: int, run_seed: int) -> Fleet:
    """The fast fleet; the reference's loop for the one option that only it has."""
    if config.isolation == "straight_through":
        return ReferenceFleet(config, num_envs, run_seed)
    return SeedTrainingFleet(config, num_envs, run_seed)
