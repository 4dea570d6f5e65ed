"""Pretraining by imitation: tuned schedules play the training tasks, and the policy imitates them before PPO."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from actors.config import EnvConfig
from actors.env.rng import Purpose, stream
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.rollout.wave import Provenance, run_wave
from actors.types.episode import Episode
from deploy.config.schema import Config
from deploy.evaluation.cells import workers
from deploy.evaluation.schedules import NEVER, Schedule, Scheduled
from deploy.evaluation.suite import on_family, protocol
from deploy.evaluation.tune import SCHEDULES, load
from deploy.launch.machine import cores
from deploy.launch.process_settings import checked_spaces
from learner.checkpoint import Checkpoint, LearnerProgress, save_policy
from learner.ppo.imitation import imitate

POLICY = "imitated.safetensors"
WAVE = 32  # episodes that one process plays in parallel
RIDGE = 0.01  # ridge coefficient, relative to the variance of the features
EARLIEST_START = 2  # first epoch to grow: two epochs show whether growing pays, and waiting costs little


def demonstrators(config: Config) -> list[Schedule]:
    """Return never growing and the tuned periodic schedule. Raises `UserError` if none fits this environment."""
    tuned = load(Path(config.imitation.schedules or SCHEDULES), protocol(config.env, config.env.rent_weight))
    known = tuned.schedules["periodic"]
    periodic = known[min(known, key=lambda weight: abs(float(weight) - config.env.rent_weight))].schedule
    return [NEVER, replace(periodic, start=max(periodic.start, EARLIEST_START))]


def pretrained_policy(config: Config, run_dir: Path, console: Console) -> Path:
    """Pretrain a policy, unless the run folder already has one. Returns the path of its weights."""
    own, path = config.imitation, run_dir / POLICY
    if not path.is_file():
        console.print(f"pretraining: imitating schedules on {own.episodes} episodes ...")
        started = time.monotonic()
        episodes = demonstrate(config)
        torch.manual_seed(config.run.seed)
        network = FactoredRecurrentActorCritic(checked_spaces(config), config.policy)
        result = imitate(network, episodes, own.passes, gamma=config.learner.gamma, seed=config.run.seed)
        save_policy(_checkpoint(network, config.learner.state_stride), path)
        console.print(
            f"imitated {len(episodes)} episodes in {time.monotonic() - started:.0f} s: held-out loss "
            f"{result.before:.2f} > {result.after:.2f} nats per step, same op in {result.agreement:.0%} of steps"
        )
        if result.skipped or result.clipped:
            console.print(
                f"warning: imitation skipped {result.skipped} steps with non-finite gradients and clipped "
                f"{result.clipped} extreme rewards and observations: check what the environment returns"
            )
    return path


def demonstrate(config: Config) -> list[Episode]:
    """Play at least `imitation.episodes` demonstrations, equally many per task, each with its own seed.

    Every host is played with and without growth, and one of the two episodes is chosen at random. The probability of
    growth increases with its expected gain, which is predicted from the host's first observations (`expected_gain`).
    With `imitation.odds: task` it is the mean gain of the task: a policy then learns to recognize these tasks, which
    transfers badly to others.
    """
    plans, tasks = demonstrators(config), tuple(dict.fromkeys(config.env.tasks))
    rng = stream(config.run.seed, 0, Purpose.DEMONSTRATIONS)
    seeds = rng.integers(0, 2**31, (len(tasks), -(-config.imitation.episodes // len(tasks))))
    starts = range(0, seeds.shape[1], WAVE)
    waves = [(task, seeds[i, k : k + WAVE].tolist()) for i, task in enumerate(tasks) for k in starts]
    jobs = [(on_family(config.env, task), plan, wave) for task, wave in waves for plan in plans]
    with workers(min(len(jobs), cores())) as pool:
        play = partial(_wave, config.run.seed, config.learner.state_stride)
        played = iter(list(pool.map(play, *zip(*jobs, strict=True))))
    bare: list[Episode] = []
    grown: list[Episode] = []
    for _ in waves:
        bare += next(played)
        grown += next(played)
    gains = np.array([g.telemetry["objective"] - b.telemetry["objective"] for b, g in zip(bare, grown, strict=True)])
    if config.imitation.odds == "task":
        expected = gains.reshape(len(tasks), -1).mean(1).repeat(seeds.shape[1])
    else:
        expected = expected_gain(np.stack([e.obs[min(plans[1].start, len(e) - 1)] for e in bare]), gains)
    odds = np.exp((expected / config.imitation.temperature).clip(-30, 30))
    grows = rng.random(len(odds)) < odds / (1 + odds)
    shown = [g if grow else b for b, g, grow in zip(bare, grown, grows, strict=True)]
    return [shown[i] for i in rng.permutation(len(shown))]


def expected_gain(seen: NDArray[np.float32], gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Predict the gain of growing `[N]` linearly from the observations `seen [N, D]`.

    Ridge regression on standardized features (Hoerl & Kennard, 1970) smooths the gains of single hosts, which are
    mostly noise.
    """
    spread = seen.std(0, dtype=np.float64)
    varies = spread > 1e-6  # features of empty slots are constant
    x = ((seen - seen.mean(0, dtype=np.float64))[:, varies] / spread[varies]).clip(-4, 4)
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ (gains - gains.mean()))
    return np.asarray(x @ weights + gains.mean())


def _wave(run_seed: int, state_stride: int, env: EnvConfig, plan: Schedule, seeds: Sequence[int]) -> list[Episode]:
    fleet = SeedTrainingFleet(env, len(seeds), run_seed)
    policy = Scheduled(fleet.spaces, [plan] * len(seeds), env.horizon_epochs, env.observe_time)
    source = Provenance(version=0, generation=0, state_stride=state_stride, run_seed=run_seed)
    return run_wave(fleet, policy, seeds, source, lambda: "demonstration/0/0/0")


def _checkpoint(network: FactoredRecurrentActorCritic, state_stride: int) -> Checkpoint:
    return Checkpoint(LearnerProgress(), (), to_weights(network, 0, 0, state_stride), {}, None)
