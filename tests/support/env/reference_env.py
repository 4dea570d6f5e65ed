"""`ReferenceEnv` and `ReferenceFleet`: what the environment must compute, one host at a time, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.episode.epoch import EpochPlan, EpochResult
from actors.env.episode.host_episode import HostEpisode
from actors.layers.batch_norm import CALIBRATION_ROWS
from actors.precision import tf32
from actors.slots.contributions import EvalResult, Validation
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces
from tests.support.env.reference_network import ReferenceNetwork

Obs = dict[str, NDArray[Any]]
Step = tuple[Obs, float, bool, bool, dict[str, Any]]


class ReferenceEnv:
    """A `SeedTrainingEnv` on a `ReferenceNetwork`."""

    def __init__(
        self,
        config: EnvConfig | None = None,
        run_seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config or EnvConfig()
        self.run_seed, self.dtype, self.device = run_seed, dtype, torch.device(device)
        self.spaces: Spaces = seed_spaces(self.config.total_slots, self.config.profile)

    @tf32(False)
    def reset(self, seed: int) -> tuple[Obs, dict[str, Any]]:
        c = self.config
        self.episode = HostEpisode(c, self.run_seed, seed, self.spaces.action)
        task = self.episode.task
        self.train_x, self.train_y = self._tensors(task.train.x, task.train.y)
        self.observed = self._tensors(self.episode.observed.x, self.episode.observed.y)
        self.scored = self._tensors(self.episode.scored.x, self.episode.scored.y)
        self.calibration = self.train_x[np.arange(CALIBRATION_ROWS) % len(self.train_x)]
        with self.device:
            self.network = ReferenceNetwork(self.episode.host, self.episode.host_rng(), self.dtype, c.column_slots)
        self.episode.begin(self._validate({}))
        self.snapshot = self.network.snapshot()
        return self.episode.observation(), self.episode.info(self.masks())

    @tf32(False)
    def step(self, action: NDArray[np.int64]) -> Step:
        """Take one action and train one epoch; see `SeedTrainingEnv` for the order of events."""
        executed, illegal = self.episode.growth.read(action)
        plan = self.episode.plan_epoch(executed, illegal)
        self._prune(plan.pruned)
        if (new := plan.germinated) is not None:
            with self.device:
                self.network.germinate(new.slot, new.blueprint, new.blend, new.rng)
        x, y = self.train_x[plan.data.rows], self.train_y[plan.data.rows]
        loss, norms, scores = self.network.train_epoch(x, y, plan.blended, plan.training, plan.data.lr)
        validation = self._validate(plan.blended)
        ablations = {subset: self._ablate(plan, subset) for subset in plan.subsets[1:]}
        if ablations:
            current = plan.subsets[0]
            ablations[current] = self._ablate(plan, current) if self.network.running else validation.observed
        scores = {s: score for s, score in scores.items() if s not in plan.alphas}
        result = EpochResult(loss, norms, scores, validation, ablations)
        outcome = self.episode.complete_epoch(plan, result, self._roll_back)
        self._prune(outcome.pruned)
        self.snapshot = self.network.snapshot()
        info = self.episode.info(self.masks())
        if illegal:
            info["illegal_action"] = illegal
        if outcome.end_reason is not None:
            info |= {"end_reason": outcome.end_reason, "telemetry": outcome.telemetry}
        return self.episode.observation(), outcome.reward, outcome.terminated, outcome.truncated, info

    def masks(self) -> ActionMasks:
        return self.episode.growth.masks()

    @tf32(False)
    def test_accuracy(self) -> float:
        x, y = self._tensors(self.episode.task.test.x, self.episode.task.test.y)
        return self.network.evaluate(x, y, self.episode.growth.blended()).accuracy

    def _ablate(self, plan: EpochPlan, subset: frozenset[int]) -> EvalResult:
        alphas = {s: a for s, a in plan.alphas.items() if s in subset}
        return self.network.ablate(*self.observed, alphas, self.calibration)

    def _prune(self, slots: tuple[int, ...]) -> None:
        for s in slots:
            if s in self.network.seeds:
                self.network.prune(s)

    def _roll_back(self, pruned: tuple[int, ...]) -> Validation:
        """Restore the last snapshot, without the seeds of the slots `pruned`."""
        self.network.restore(self.snapshot)
        self._prune(pruned)
        return self._validate(self.episode.growth.blended())

    def _validate(self, alphas: Mapping[int, float]) -> Validation:
        observed, scored = (self.network.evaluate(x, y, alphas) for x, y in (self.observed, self.scored))
        return Validation(observed, scored.accuracy)

    def _tensors(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(x).to(self.device, self.dtype), torch.from_numpy(y).to(self.device)


class ReferenceFleet:
    """Steps one `ReferenceEnv` after the other, as a fleet steps all at once."""

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        run_seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.envs = [ReferenceEnv(config, run_seed, dtype, device) for _ in range(num_envs)]
        self.spaces = self.envs[0].spaces
        self.num_envs = num_envs

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        started = [env.reset(int(seed)) for env, seed in zip(self.envs, seeds, strict=True)]
        self._last: list[Step] = [(obs, 0.0, False, False, info) for obs, info in started]
        self.running = [True] * self.num_envs
        return self._gather()

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        for e, env in enumerate(self.envs):
            obs, _, _, _, info = self._last[e]
            self._last[e] = env.step(actions[e]) if self.running[e] else (obs, 0.0, False, False, info)
            self.running[e] &= not any(self._last[e][2:4])
        return self._gather()

    def _gather(self) -> FleetStep:
        seen, rewards, terminated, truncated, infos = zip(*self._last, strict=True)
        ended = np.logical_or(terminated, truncated)
        return FleetStep(
            np.stack([obs["obs"] for obs in seen]),
            np.stack([obs["blueprint_indices"] for obs in seen]),
            ActionMasks(*(np.stack(part) for part in zip(*(info["masks"] for info in infos), strict=True))),
            np.array(rewards, dtype=np.float32),
            np.array(terminated),
            np.array(truncated),
            tuple(info["end_reason"] if end else None for info, end in zip(infos, ended, strict=True)),
            tuple(info["telemetry"] if end else {} for info, end in zip(infos, ended, strict=True)),
        )
