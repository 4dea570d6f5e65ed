"""Fleets in the state to be timed: with two seeds held in each host and one in training, columns too, or neither."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.env.episode.governor import Governor
from actors.env.episode.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.types.actions import Op
from benchmarks.environment.hosts import WIDTH, BenchHost
from tests.support.env.reference_env import ReferenceFleet

SLOTS, COLUMN_SLOTS = 3, 2
Fleet = ReferenceFleet | SeedTrainingFleet


class NeverPanics(Governor):
    """Lets episodes go on in which training breaks down: the seeds of a host of two channels may do that."""

    def check(self, train_loss: float, val_loss: float, accuracy: float) -> None:
        return None


def growth(first: int, count: int) -> list[tuple[Op, int]]:
    """Return the actions that fill `count` slots: the last seed stays in TRAINING, the others continue to HOLDING."""
    return [(op, first + s) for s in range(count) for op in (Op.GERMINATE, Op.ADVANCE, Op.ADVANCE)][:-1]


MIXES = {
    "none": [],
    "3 alike": growth(0, SLOTS),
    "3 alike, 2 columns": growth(0, SLOTS) + growth(SLOTS, COLUMN_SLOTS),
}


def settings(task: str, inner_steps: int = 16) -> EnvConfig:
    """Return a configuration with episodes longer than any benchmark plays, and no limit on growth."""
    return EnvConfig(
        tasks=(task,),
        slots=SLOTS,
        column_slots=COLUMN_SLOTS,
        device="cpu",
        host_width=WIDTH,
        horizon_epochs=200,
        budget_ratio=200.0,
        inner_steps=inner_steps,
    )


def grown(kind: type[Fleet], config: EnvConfig, host: BenchHost, envs: int, mix: str) -> Fleet:
    """Make a fleet and grow its seeds, with one minibatch per epoch and without ablations, to be quick."""
    loop = kind is ReferenceFleet
    fleet = ReferenceFleet(config, envs, device=config.device) if loop else SeedTrainingFleet(config, envs, 0)
    fleet.reset(range(envs))
    seed, column = blueprint_index(host.seed), blueprint_index("column_same")
    for episode in episodes(fleet):
        episode.governor = NeverPanics(episode.task.num_classes, 0.0)
        episode.config = replace(config, contribution_every=config.max_horizon_epochs)
        episode.settings = episode.settings._replace(inner_steps=1)
    for op, slot in MIXES[mix]:
        actions = waits(fleet)
        actions[:, 0], actions[:, 1], actions[:, 4] = op, slot, 2  # alpha 1.0, at once
        actions[:, 2] = seed if slot < SLOTS else column
        fleet.step(actions)
    fleet.step(waits(fleet))
    for episode in episodes(fleet):
        episode.config = config
        episode.settings = episode.settings._replace(inner_steps=config.max_inner_steps)
    active = {sum(slot.active for slot in episode.lifecycle.slots) for episode in episodes(fleet)}
    if active != {len({slot for _, slot in MIXES[mix]})}:
        raise RuntimeError(f"after growing {mix}, hosts have {active} active seeds")
    return fleet


def episodes(fleet: Fleet) -> list[HostEpisode]:
    if isinstance(fleet, ReferenceFleet):
        return [env.episode for env in fleet.envs]
    return fleet.episodes


def waits(fleet: Fleet) -> NDArray[np.int64]:
    return np.zeros((fleet.num_envs, len(fleet.spaces.action.heads)), dtype=np.int64)


def parameters(fleet: Fleet) -> str:
    """Return the parameters of one environment: host + seeds, on average."""
    own = episodes(fleet)
    grown_params = sum(episode.growth.added_params() for episode in own) / len(own)
    host_params = sum(episode.host.num_params() for episode in own) / len(own)
    return f"{host_params:,.0f} + {grown_params:,.0f}"
