"""A policy's first lesson: tuned schedules play the training tasks, and the policy imitates them before PPO begins."""

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
WAVE = 32  # episodes that one process plays at once
RIDGE = 0.01  # of the features' own variance
EARLIEST_START = 2  # epoch: what two of them show tells whether growing pays, and they cost a schedule next to nothing


def demonstrators(config: Config) -> list[Schedule]:
    """Never growing, and the tuned periodic schedule. Raises `UserError` where none is for this environment."""
    tuned = load(Path(config.imitation.schedules or SCHEDULES), protocol(config.env, config.env.rent_weight))
    known = tuned.schedules["periodic"]
    periodic = known[min(known, key=lambda weight: abs(float(weight) - config.env.rent_weight))].schedule
    return [NEVER, replace(periodic, start=max(periodic.start, EARLIEST_START))]


def pretrained_policy(config: Config, run_dir: Path, console: Console) -> Path:
    """Made once, and kept in the run's folder."""
    own, path = config.imitation, run_dir / POLICY
    if not path.is_file():
        console.print(f"imitating what serves each host best: {own.episodes} episodes ...")
        started = time.monotonic()
        episodes = demonstrate(config)
        torch.manual_seed(config.run.seed)
        network = FactoredRecurrentActorCritic(checked_spaces(config), config.policy)
        told = imitate(network, episodes, own.passes, gamma=config.learner.gamma, seed=config.run.seed)
        save_policy(_checkpoint(network, config.learner.state_stride), path)
        console.print(
            f"imitated {len(episodes)} episodes in {time.monotonic() - started:.0f} s: {told.before:.2f} > "
            f"{told.after:.2f} nats a step on those held out, the same op in {told.agreement:.0%} of steps"
        )
        if told.skipped or told.clipped:
            console.print(
                f"warning: imitation skipped {told.skipped} steps whose gradient was not finite, and clipped "
                f"{told.clipped} rewards and observations of extreme size: look at what the environment gives"
            )
    return path


def demonstrate(config: Config) -> list[Episode]:
    """As many episodes at least as were asked for, as many of each task, each of a seed of its own.

    Every host is played both ways, and is shown to grow as surely as the first epochs of hosts that looked alike, of
    whatever task, say that growing serves it (`expected_gain`). With `imitation.odds` of `task` it is what serves the
    task: a policy then learns to tell these tasks apart, and guesses badly on others.
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
    """What growing gains `[N]` as far as a linear function of the observations `seen [N, D]` tells (ridge regression on
    standardised features; Hoerl & Kennard, 1970). Gains of single hosts are mostly noise; this is smooth."""
    spread = seen.std(0, dtype=np.float64)
    told = spread > 1e-6  # a bare host's slots, say, are all alike
    x = ((seen - seen.mean(0, dtype=np.float64))[:, told] / spread[told]).clip(-4, 4)
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ (gains - gains.mean()))
    return np.asarray(x @ weights + gains.mean())


def _wave(run_seed: int, state_stride: int, env: EnvConfig, plan: Schedule, seeds: Sequence[int]) -> list[Episode]:
    fleet = SeedTrainingFleet(env, len(seeds), run_seed)
    policy = Scheduled(fleet.spaces, [plan] * len(seeds), env.horizon_epochs, env.observe_time)
    source = Provenance(version=0, generation=0, state_stride=state_stride, run_seed=run_seed)
    return run_wave(fleet, policy, seeds, source, lambda: "demonstration/0/0/0")


def _checkpoint(network: FactoredRecurrentActorCritic, state_stride: int) -> Checkpoint:
    return Checkpoint(LearnerProgress(), (), to_weights(network, 0, 0, state_stride), {}, None)
