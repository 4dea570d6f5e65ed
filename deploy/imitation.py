"""A policy's first lesson: tuned schedules play the training tasks, and the policy imitates them before PPO begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

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


def demonstrators(config: Config) -> list[Schedule]:
    """Never growing, the best schedule of each kind, and the periodic one with fewer seeds. Raises `UserError` where
    nothing is tuned for this environment."""
    tuned = load(Path(config.imitation.schedules or SCHEDULES), protocol(config.env, config.env.rent_weight))
    best = {kind: _nearest(tuned, kind, config.env.rent_weight) for kind in tuned.schedules}
    fewer = [replace(best["periodic"], seeds=count) for count in range(1, best["periodic"].seeds)]
    growing = [replace(plan, start=max(plan.start, EARLIEST_START)) for plan in (*best.values(), *fewer)]
    return [NEVER, *growing]


def _nearest(tuned: Tuned, kind: str, rent_weight: float) -> Schedule:
    known = tuned.schedules[kind]
    return known[min(known, key=lambda weight: abs(float(weight) - rent_weight))].schedule


def imitated_policy(config: Config, run_dir: Path, console: Console) -> Path:
    """Made once, and kept in the run's folder."""
    own, path = config.imitation, run_dir / POLICY
    if not path.is_file():
        console.print(f"imitating the best schedule of each task: {own.episodes} episodes ...")
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
    """As many episodes at least as were asked for, as many of each task, each of a seed of its own.

    All schedules play all of a task, and what is shown of it is by the one that served it best on average: so the
    policy is told to look at a host and to guess which schedule it needs.
    """
    plans, tasks = demonstrators(config), config.env.tasks
    rng = stream(config.run.seed, 0, Purpose.DEMONSTRATIONS)
    seeds = rng.integers(0, 2**31, (len(tasks), -(-config.imitation.episodes // len(tasks))))
    starts = range(0, seeds.shape[1], WAVE)
    waves = [(task, seeds[i, k : k + WAVE].tolist()) for i, task in enumerate(tasks) for k in starts]
    jobs = [(replace(config.env, tasks=(task,)), plan, wave) for task, wave in waves for plan in plans]
    with workers(min(len(jobs), cores())) as pool:
        play = partial(_wave, config.run.seed, config.learner.state_stride)
        played = iter(list(pool.map(play, *zip(*jobs, strict=True))))
    by_task: dict[str, list[list[Episode]]] = {task: [[] for _ in plans] for task in tasks}
    for task, _ in waves:
        for episodes in by_task[task]:
            episodes += next(played)
    shown = [episode for task in tasks for episode in best(by_task[task])]
    return [shown[i] for i in rng.permutation(len(shown))]


def best(played: Sequence[Sequence[Episode]]) -> Sequence[Episode]:
    """Those of the schedule with the highest mean J; the first of equals."""
    return max(played, key=lambda episodes: fmean(e.telemetry["objective"] for e in episodes))


def _wave(run_seed: int, state_stride: int, env: EnvConfig, plan: Schedule, seeds: Sequence[int]) -> list[Episode]:
    fleet = SeedTrainingFleet(env, len(seeds), run_seed)
    policy = Scheduled(fleet.spaces, [plan] * len(seeds), env.horizon_epochs, env.observe_time)
    source = Provenance(version=0, generation=0, state_stride=state_stride, run_seed=run_seed)
    return run_wave(fleet, policy, seeds, source, lambda: "demonstration/0/0/0")


def _checkpoint(network: FactoredRecurrentActorCritic, state_stride: int) -> Checkpoint:
    return Checkpoint(Progress(), (), to_weights(network, 0, 0, state_stride), {}, None)
