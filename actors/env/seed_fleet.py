"""`SeedTrainingFleet`: seed-training environments that train together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig, require
from actors.env.episode.epoch import EpochPlan
from actors.env.episode.host_episode import HostEpisode, check_tasks
from actors.env.episode.settings import width_range
from actors.env.episode.timeline import Timeline
from actors.env.episode.twin import Trajectory, padded, twin_config
from actors.env.fleet_networks import NetworkSettings
from actors.env.hosts.host import Host
from actors.env.hosts.make import make_host
from actors.env.mixed_networks import LEAST_CHANNELS, LEAST_CHANNELS_OF_KERNELS, HostKind, host_kind, make_networks
from actors.kernels.cnn.layout import NARROW
from actors.slots.lifecycle import IllegalAction
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason
from actors.types.fleet_step import FleetStep


class SeedTrainingFleet:
    """E seed-training environments that are reset together, see `actors.env.env.SeedTrainingEnv`. One whose episode
    ends early idles until the next reset.

    Its networks are trained by the backend that `config.backend` names. With the torch backend, environments with
    different tasks share tensors, padded to the largest host. The results of an environment do not depend on what
    the others do.
    """

    env_id = "tamiyo/SeedTraining-v0"

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        run_seed: int,
        dtype: torch.dtype = torch.float32,
        read_test: bool = False,
        width_scale: int = 1,
        gpu: bool = False,
    ) -> None:
        """`read_test` adds `test_accuracy`, in points, to the telemetry of each episode that ends.

        Hosts are `width_scale` times as wide as their episodes draw; tasks and minibatches are the same. `gpu` is
        whether `env.device: auto` may use a GPU, as in an actor with a share of one.
        """
        tasks = check_tasks(config, run_seed)
        self.config, self.num_envs, self.run_seed, self.read_test = config, num_envs, run_seed, read_test
        self.width_scale, self.gpu = width_scale, gpu
        self.spaces = seed_spaces(config.total_slots, config.profile)
        self.episodes: list[HostEpisode] = []
        self.illegal: dict[int, str] = {}
        """Environments whose last action was illegal, and why."""
        self._running = np.zeros(num_envs, dtype=np.bool_)
        self._observations: dict[int, dict[str, NDArray[Any]]] = {}
        self._masks: dict[int, ActionMasks] = {}
        self.dtype, self.device = dtype, _device(config, gpu)
        kernels = self.device.type == "cpu" and dtype is torch.float32 and config.batch_size % NARROW == 0
        least = LEAST_CHANNELS_OF_KERNELS if kernels else LEAST_CHANNELS
        most_steps, on_gpu = config.max_horizon_epochs * config.max_inner_steps, self.device.type == "cuda"
        settings = NetworkSettings(most_steps, dtype, self.device, least, config.cuda_graph and on_gpu)
        hosts: list[tuple[HostKind, Host]] = []
        for name, task in zip(config.tasks, tasks, strict=True):
            narrowest, widest = width_range(config, name)
            for width in range(width_scale * narrowest, width_scale * widest + 1):
                host = make_host(task, width, config.slots)
                hosts.append((host_kind(host, task.shape, least), host))
        self.networks = make_networks(
            hosts, config.column_slots, num_envs, settings, config.backend, config.device != "cuda"
        )

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        """Start an episode in every environment, from `seeds` `[E]`."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        return self.reset_envs(dict(enumerate(seeds)))

    def reset_envs(self, seeds: Mapping[int, int]) -> FleetStep:
        """Start episodes in some environments (env -> seed); the others are unchanged, bit for bit."""
        new = {
            e: HostEpisode(self.config, self.run_seed, int(s), self.spaces.action, self.width_scale)
            for e, s in seeds.items()
        }
        if not self.episodes and len(new) < self.num_envs:
            raise ValueError("the first reset must be of all environments")
        self.episodes = [new.get(e) or self.episodes[e] for e in range(self.num_envs)]
        untrained = self.networks.reset(self.episodes, list(new))
        twinned = new if self.config.reference == "twin" else ()
        twins = self._play_twins({new[e].seed for e in twinned if not self.networks.can_train_twin(e)})
        for e, episode in new.items():
            episode.begin(untrained[e], twins.get(episode.seed))
            self._running[e] = True
            self._observe(e)
        zeros, none = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        return self._step(zeros, none, none, [None] * self.num_envs, [{}] * self.num_envs)

    def step(self, actions: NDArray[np.int64], strict: bool = False) -> FleetStep:
        """Take `actions` `[E, H]` and train one epoch; rows of ended environments are ignored.

        If `strict`, an illegal action raises `IllegalAction`, before any environment has taken its own.
        """
        n = self.num_envs
        running = map(int, np.flatnonzero(self._running))
        read = {e: self.episodes[e].growth.read(actions[e], self._masks[e]) for e in running}
        self.illegal = {e: why for e, (_, why) in read.items() if why}
        if strict and self.illegal:
            raise IllegalAction("; ".join(f"environment {e}: {why}" for e, why in self.illegal.items()))
        plans: list[EpochPlan | None] = [None] * n
        for e, (action, why) in read.items():
            episode = self.episodes[e]
            plans[e] = planned = episode.plan_epoch(action, why)
            if epochs := episode.twin_epochs(planned):
                episode.set_twin(self.networks.train_twin(e, epochs))
        results = self.networks.run_epoch(plans)
        rewards, terminated, truncated = np.zeros(n), np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
        reasons: list[EndReason | None] = [None] * n
        telemetry: list[dict[str, float]] = [{} for _ in range(n)]
        pruned: list[tuple[int, ...]] = [()] * n
        for e, (episode, plan, result) in enumerate(zip(self.episodes, plans, results, strict=True)):
            if plan is None or result is None:
                continue
            outcome = episode.complete_epoch(plan, result, lambda slots, e=e: self.networks.roll_back(e, slots))  # type: ignore[misc]
            rewards[e], terminated[e], truncated[e] = outcome.reward, outcome.terminated, outcome.truncated
            pruned[e] = outcome.pruned
            reasons[e], telemetry[e] = outcome.end_reason, outcome.telemetry
            self._observe(e)
        self.networks.commit(pruned)
        if self.read_test and (ended := np.flatnonzero(self._running & (terminated | truncated)).tolist()):
            for e, tested in self.test_accuracies(ended).items():
                telemetry[e]["test_accuracy"] = tested
        self._running &= ~(terminated | truncated)
        return self._step(rewards, terminated, truncated, reasons, telemetry)

    def masks(self, env: int) -> ActionMasks:
        """Return the legal choices of the next action of one environment."""
        return self._masks[env]

    def info(self, env: int, step: FleetStep | None = None) -> dict[str, Any]:
        """Return Gymnasium's `info` of one environment; `step` is its last one, None after a reset."""
        info = self.episodes[env].info(self._masks[env])
        if step is not None and env in self.illegal:
            info["illegal_action"] = self.illegal[env]
        if step is not None and step.end_reasons[env] is not None:
            info |= {"end_reason": step.end_reasons[env], "telemetry": step.telemetry[env]}
        return info

    def test_accuracies(self, envs: Sequence[int]) -> dict[int, float]:
        """Return the accuracies of these environments on their test rows, in points."""
        alphas = {e: self.episodes[e].growth.blended() for e in envs}
        return {e: tested.accuracy for e, tested in self.networks.evaluate_test(alphas).items()}

    def task_ids(self) -> tuple[str, ...]:
        """Return the task of each environment's episode."""
        return tuple(episode.task.task_id for episode in self.episodes)

    def timelines(self) -> tuple[Timeline, ...]:
        """Return the record of each environment's episode so far."""
        return tuple(episode.timeline for episode in self.episodes)

    def _play_twins(self, seeds: Collection[int]) -> dict[int, Trajectory]:
        """Play never-grow episodes in a fleet of their own, for hosts whose backend cannot train a twin beside them."""
        if not seeds:
            return {}
        width = max(2, len(seeds))  # a stack of one rounds differently
        fleet = SeedTrainingFleet(
            twin_config(self.config), width, self.run_seed, self.dtype, width_scale=self.width_scale, gpu=self.gpu
        )
        fleet.reset([*seeds, *seeds][:width])
        waits = np.zeros((width, len(self.spaces.action.heads)), dtype=np.int64)
        while fleet.running:
            fleet.step(waits)
        return {episode.seed: padded(episode.accuracies, episode.horizon_epochs) for episode in fleet.episodes}

    @property
    def running(self) -> bool:
        """Whether any episode has not ended."""
        return bool(self._running.any())

    def _observe(self, env: int) -> None:
        episode = self.episodes[env]
        self._observations[env], self._masks[env] = episode.observation(), episode.growth.masks()

    def _step(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        reasons: list[EndReason | None],
        telemetry: list[dict[str, float]],
    ) -> FleetStep:
        seen = [self._observations[e] for e in range(self.num_envs)]
        masks = [self._masks[e] for e in range(self.num_envs)]
        slot = [m.slot for m in masks if m.slot is not None]
        return FleetStep(
            np.array([obs["obs"] for obs in seen]),  # `np.stack` would take 2.5 times as long
            np.array([obs["blueprint_indices"] for obs in seen]),
            ActionMasks(np.array([m.op for m in masks]), np.array(slot), np.array([m.rest for m in masks])),
            rewards.astype(np.float32),
            terminated,
            truncated,
            tuple(reasons),
            tuple(telemetry),
        )


def _device(config: EnvConfig, gpu: bool) -> torch.device:
    """Return the device of the torch backend."""
    if config.device == "cpu" or (config.device == "auto" and not gpu):
        return torch.device("cpu")
    present = torch.cuda.is_available()
    require(present or config.device != "cuda", "env.device is cuda, but PyTorch finds no CUDA device here")
    return torch.device("cuda" if present else "cpu")


def make_fleet(config: EnvConfig, num_envs: int, run_seed: int, gpu: bool = False) -> SeedTrainingFleet:
    """Make a fleet of seed-training environments. For `gpu` see `SeedTrainingFleet`."""
    return SeedTrainingFleet(config, num_envs, run_seed, gpu=gpu)
