"""A policy's first lesson: tuned schedules play the training tasks, and the policy imitates them before PPO begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from actors.config import EnvConfig
from actors.env.rng import Purpose, stream
from actors.env.seed_fleet import SeedTrainingFleet
from actors.episode import Episode
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.rollout import Provenance, run_wave
from deploy.config import Config
from deploy.doctor import cores
from deploy.evaluation.cells import workers
from deploy.evaluation.schedules import NEVER, Schedule, Scheduled
from deploy.evaluation.suite import protocol
from deploy.evaluation.tune import SCHEDULES, Tuned, load
from deploy.launch import checked_spaces
from learner.checkpoint import Checkpoint, Progress, save_policy
from learner.imitation import imitate

POLICY = "imitated.safetensors"
WAVE = 32  # episodes that one process plays at once
EARLIEST_START = 2  # epoch: what two of them show tells whether growing pays, and they cost a schedule next to nothing
PERIODIC_SHARE = 0.6  # of the demonstrations: the periodic schedule's; plateau, gradient and never share the rest


def demonstrators(config: Config) -> list[tuple[float, Schedule]]:
    """(share, schedule). Raises `UserError` where nothing is tuned for this environment."""
    tuned = load(Path(config.imitation.schedules or SCHEDULES), protocol(config.env, config.env.rent_weight))
    best = _nearest(tuned, "periodic", config.env.rent_weight)
    others = [_nearest(tuned, kind, config.env.rent_weight) for kind in tuned.schedules if kind != "periodic"]
    rest = [*others, NEVER]
    shares = [(PERIODIC_SHARE, best), *(((1.0 - PERIODIC_SHARE) / len(rest), schedule) for schedule in rest)]
    return [(share, replace(schedule, start=max(schedule.start, EARLIEST_START))) for share, schedule in shares]


def _nearest(tuned: Tuned, kind: str, rent_weight: float) -> Schedule:
    known = tuned.schedules[kind]
    return known[min(known, key=lambda weight: abs(float(weight) - rent_weight))].schedule


def imitated_policy(config: Config, run_dir: Path, console: Console) -> Path:
    """Made once, and kept in the run's folder."""
    own, path = config.imitation, run_dir / POLICY
    if not path.is_file():
        console.print(f"imitating tuned schedules: {own.episodes} episodes ...")
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
    return path


def demonstrate(config: Config) -> list[Episode]:
    """Each episode on a task and by a schedule of its own, drawn by the run's seed; as many at least as were asked
    for, whole waves."""
    shares, plans = zip(*demonstrators(config), strict=True)
    waves = -(-config.imitation.episodes // WAVE)
    rng = stream(config.run.seed, 0, Purpose.DEMONSTRATIONS)
    chosen = rng.choice(len(plans), (waves, WAVE), p=np.array(shares))
    seeds = rng.integers(0, 2**31, (waves, WAVE))
    with workers(min(waves, cores())) as pool:
        parts = pool.map(
            _wave,
            [config.env] * waves,
            [config.run.seed] * waves,
            [[plans[k] for k in row] for row in chosen],
            seeds.tolist(),
            [config.learner.state_stride] * waves,
        )
        return [episode for part in parts for episode in part]


def _wave(
    env: EnvConfig, run_seed: int, plans: Sequence[Schedule], seeds: Sequence[int], state_stride: int
) -> list[Episode]:
    fleet = SeedTrainingFleet(env, len(plans), run_seed)
    policy = Scheduled(fleet.spaces, plans, env.horizon_epochs, env.observe_time)
    source = Provenance(version=0, generation=0, state_stride=state_stride, run_seed=run_seed)
    return run_wave(fleet, policy, seeds, source, lambda: "demonstration/0/0/0")


def _checkpoint(network: FactoredRecurrentActorCritic, state_stride: int) -> Checkpoint:
    return Checkpoint(Progress(), (), to_weights(network, 0, 0, state_stride), {}, None)
