"""Pretraining by imitation: rules play the training tasks, and the policy imitates the best ones before PPO."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from actors.config import EnvConfig
from actors.env.rng import Purpose, stream
from actors.env.seed_fleet import SeedTrainingFleet
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.rollout.wave import Provenance, run_wave
from actors.rules.names import parse_rule
from actors.rules.schedule import NEVER, Schedule, Scheduled
from actors.types.episode import Episode
from deploy.config.schema import Config
from deploy.evaluation.cells import workers
from deploy.evaluation.play import gain_and_rent
from deploy.evaluation.suite import on_family
from deploy.launch.machine import cores
from deploy.launch.process_settings import checked_spaces
from learner.ppo.imitation import imitate
from learner.run.checkpoint import Checkpoint, LearnerProgress, save_policy

POLICY = "imitated.safetensors"
WAVE = 32  # episodes that one process plays in parallel
RIDGE = 0.01  # ridge coefficient, relative to the variance of the features
EARLIEST_START = 3  # first epoch to grow: three epochs show whether growing pays, and waiting costs little


def demonstrators(config: Config) -> list[Schedule]:
    """Return never growing and the rules to imitate. Raises `UserError` for a name that is no schedule."""
    found = [NEVER]
    for name in config.imitation.rules:
        rule = parse_rule(name)
        if not isinstance(rule, Schedule):
            raise UserError(f"imitation.rules has {name!r}: only never, periodic and fixed-column can be imitated")
        found.append(replace(rule, start=max(rule.start, EARLIEST_START)))
    return found


def pretrained_policy(config: Config, run_dir: Path, console: Console) -> Path:
    """Pretrain a policy, unless the run folder already has one. Returns the path of its weights."""
    own, path = config.imitation, run_dir / POLICY
    if not path.is_file():
        console.print(f"pretraining: imitating rules on {own.episodes} episodes ...")
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

    Every host is played by never growing and by every rule, and one of these episodes is chosen at random. Its
    probability increases with the J that is expected of it at the price of the episode, given what is observed of the
    host before anything grows (`expected`). With `imitation.odds: task` the mean gain of the task is expected: a policy
    then learns to recognize these tasks, which transfers badly to others.
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
    by_plan: list[list[Demonstration]] = [[] for _ in plans]
    for _ in waves:
        for known in by_plan:
            known += next(played)
    over_never = np.array([[d.over(bare) for d, bare in zip(own, by_plan[0], strict=True)] for own in by_plan[1:]])
    gains, rents = over_never.transpose(2, 1, 0)  # [N, rules] each
    if config.imitation.odds == "task":
        by_task = over_never.reshape(len(plans) - 1, len(tasks), -1, 2).mean(2).repeat(seeds.shape[1], 1)
        gain, rent = by_task.transpose(2, 1, 0)
    else:
        seen = np.stack([d.episode.obs[min(EARLIEST_START, len(d.episode) - 1)] for d in by_plan[0]])
        gain, rent = expected(seen, gains), expected(seen, rents)
    price = np.array([d.price for d in by_plan[0]])[:, None]
    worth = np.concatenate([np.zeros_like(price), gain - price * rent], 1) / config.imitation.temperature
    odds = np.exp(worth - worth.max(1, keepdims=True))
    limits = (odds / odds.sum(1, keepdims=True)).cumsum(1)
    choices = (rng.random(len(odds))[:, None] > limits[:, :-1]).sum(1)
    shown = [by_plan[choice][n].episode for n, choice in enumerate(choices)]
    return [shown[i] for i in rng.permutation(len(shown))]


class Demonstration(NamedTuple):
    """An episode, and J by its parts: gain - price * rent."""

    episode: Episode
    gain: float  # points
    rent: float  # doublings
    price: float

    def over(self, bare: Demonstration) -> tuple[float, float]:
        """Return (gain, rent) over those of never growing."""
        return self.gain - bare.gain, self.rent - bare.rent


def expected(seen: NDArray[np.float32], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Predict `values [N, K]` linearly from the observations `seen [N, D]`.

    Ridge regression on standardized features (Hoerl & Kennard, 1970) smooths the gains of single hosts, which are
    mostly noise.
    """
    spread = seen.std(0, dtype=np.float64)
    varies = spread > 1e-6  # features of empty slots are constant
    x = ((seen - seen.mean(0, dtype=np.float64))[:, varies] / spread[varies]).clip(-4, 4)
    mean = values.mean(0)
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ (values - mean))
    return np.asarray(x @ weights + mean)


def _wave(
    run_seed: int, state_stride: int, env: EnvConfig, plan: Schedule, seeds: Sequence[int]
) -> list[Demonstration]:
    fleet = SeedTrainingFleet(env, len(seeds), run_seed)
    source = Provenance(version=0, generation=0, state_stride=state_stride, run_seed=run_seed)
    episodes = run_wave(fleet, Scheduled(fleet.spaces, plan), seeds, source, lambda: "demonstration/0/0/0")
    return [
        Demonstration(episode, *gain_and_rent(host, episode), host.rent_weight)
        for host, episode in zip(fleet.episodes, episodes, strict=True)
    ]


def _checkpoint(network: FactoredRecurrentActorCritic, state_stride: int) -> Checkpoint:
    return Checkpoint(LearnerProgress(), (), to_weights(network, 0, 0, state_stride), {}, None)
