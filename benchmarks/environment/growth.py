"""Fleets in the state to be timed: with two seeds held in each host and one in training, or without seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.fleet import Fleet, ReferenceFleet
from actors.env.host_episode import HostEpisode
from actors.env.hosts.make import make_host
from actors.env.seed_fleet import SeedTrainingFleet
from actors.types.actions import Op
from benchmarks.environment.hosts import BenchHost

SLOTS = 3
# Slots 0 and 1 continue to HOLDING, slot 2 stays in TRAINING.
GROWTH = [(op, s) for s in range(SLOTS) for op in (Op.GERMINATE, Op.ADVANCE, Op.ADVANCE)][:-1]
MIXES = ("none", "3 alike", "3 of all kinds")


def settings(task: str, inner_steps: int = 16) -> EnvConfig:
    """Return a configuration with episodes longer than any benchmark plays, and no limit on growth."""
    return EnvConfig(tasks=(task,), horizon_epochs=200, budget_ratio=40.0, inner_steps=inner_steps)


def grown(
    kind: type[ReferenceFleet] | type[SeedTrainingFleet],
    config: EnvConfig,
    host: BenchHost,
    envs: int,
    mix: str,
    device: Literal["cpu", "cuda"] = "cpu",
) -> Fleet:
    """Make a fleet and grow its seeds, with one minibatch per epoch and without ablations, to be quick."""
    config = replace(config, device=device)
    fleet = ReferenceFleet(config, envs, 0, device) if kind is ReferenceFleet else SeedTrainingFleet(config, envs, 0)
    fleet.reset(range(envs))
    table = episodes(fleet)[0].host.family.blueprints
    names = [b.name for b in table]
    blueprints = np.full(envs, names.index(host.seed)) if mix == "3 alike" else 1 + np.arange(envs) % (len(table) - 1)
    short = replace(config, inner_steps=1, contribution_every=config.horizon_epochs)
    for episode in episodes(fleet):
        episode.config = short
    for op, slot in GROWTH if mix != "none" else []:
        actions = waits(fleet)
        actions[:, 0], actions[:, 1], actions[:, 2], actions[:, 4] = op, slot, blueprints, 2  # alpha 1.0, at once
        fleet.step(actions)
    fleet.step(waits(fleet))
    for episode in episodes(fleet):
        episode.config = config
    active = {sum(slot.active for slot in episode.lifecycle.slots) for episode in episodes(fleet)}
    if active != {0 if mix == "none" else SLOTS}:
        raise RuntimeError(f"after growing, hosts have {active} active seeds")
    return fleet


def episodes(fleet: Fleet) -> list[HostEpisode]:
    if isinstance(fleet, ReferenceFleet):
        return [env.episode for env in fleet.envs]
    assert isinstance(fleet, SeedTrainingFleet)
    return fleet.episodes


def waits(fleet: Fleet) -> NDArray[np.int64]:
    return np.zeros((fleet.num_envs, len(fleet.spaces.action.heads)), dtype=np.int64)


def parameters(fleet: Fleet) -> str:
    """Return the parameters of one environment: host + seeds, on average."""
    own = episodes(fleet)
    grown_params = sum(episode.added_params() for episode in own) / len(own)
    return f"{make_host(own[0].task, SLOTS).num_params():,} + {grown_params:,.0f}"
