"""Playing one cell: a player on the seeds of one family, in a fleet. Rows are plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from actors.config import EnvConfig
from actors.env.env import seed_spaces
from actors.env.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.slots.stage import Stage
from actors.env.slots.topology import GrownSeed, Topology
from actors.rollout.wave import Policy, Provenance, run_wave
from actors.types.episode import Episode
from actors.types.spaces import Spaces
from deploy.evaluation.flops import cost, training_flops

LONGEST = 4  # horizons that a host trained from scratch may take to match a grown one's training


@dataclass(frozen=True)
class Row:
    """One episode. J at a rent weight w is `gain - w * rent`."""

    seed: int
    gain: float  # points of validation accuracy over the untrained host, less fines
    rent: float  # doublings of the host's parameters, averaged over the horizon
    accuracy: float  # validation, at the end
    test_accuracy: float  # read once, at the end
    host_width: int
    host_params: int
    final_params: int
    fossilized: int
    topology: list[list[float]]
    started: int  # seeds germinated
    panic: bool
    epochs: int
    illegal: int
    finite: bool
    training_flops: float
    measuring_flops: float
    inference_flops: float

    @property
    def grown(self) -> Topology:
        return tuple(GrownSeed(int(s), int(b), int(m), float(a)) for s, b, m, a in self.topology)

    def objective(self, rent_weight: float) -> float:
        return self.gain - rent_weight * self.rent

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def play(
    policy: Callable[[Spaces], Policy],
    config: EnvConfig,
    run_seed: int,
    seeds: Sequence[int],
    deterministic: bool = True,
    topologies: Sequence[Topology] | None = None,
    read_test: bool = True,
) -> list[Row]:
    """One episode of each seed in one wave."""
    fleet = SeedTrainingFleet(config, len(seeds), run_seed, read_test=read_test)
    if topologies is not None:
        fleet.set_topologies(topologies)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=run_seed)
    episodes = run_wave(fleet, policy(fleet.spaces), seeds, source, lambda: "evaluated/0/0/0", deterministic)
    return [row(host, episode) for host, episode in zip(fleet.episodes, episodes, strict=True)]


def gain_and_rent(host: HostEpisode, episode: Episode) -> tuple[float, float]:
    """Return what an episode gained, in points, and its rent, in doublings: J at a price w is gain - w * rent."""
    horizon = host.horizon_epochs
    unpaid = host.rents[-1] * (horizon - host.epoch)  # the governor charges it too
    rent = (sum(host.rents) + unpaid) / horizon
    return episode.telemetry["objective"] + host.rent_weight * rent, rent


def row(host: HostEpisode, episode: Episode) -> Row:
    """What an episode came to."""
    told = episode.telemetry
    gain, rent = gain_and_rent(host, episode)
    test = told.get("test_accuracy", float("nan"))
    spent = cost(host)
    slots = host.lifecycle.slots
    values = (gain, rent, told["final_accuracy"], float(np.sum(episode.rewards)), float(np.sum(episode.log_probs)))
    return Row(
        seed=host.seed,
        gain=gain,
        rent=rent,
        accuracy=told["final_accuracy"],
        test_accuracy=test,
        host_width=host.host.width,
        host_params=host.growth.host_params,
        final_params=host.growth.host_params + host.added_params(),
        fossilized=sum(slot.stage is Stage.FOSSILIZED for slot in slots),
        topology=[list(map(float, g)) for g in host.topology()],
        started=host.germinations,
        panic=told["panic"] > 0,
        epochs=host.epoch,
        illegal=host.illegal_actions,
        finite=all(map(isfinite, values)),
        training_flops=spent.training,
        measuring_flops=spent.measuring,
        inference_flops=spent.inference,
    )


def largest(config: EnvConfig, run_seed: int, seeds: Sequence[int]) -> list[Topology]:
    """Every slot filled: in order, each with the dearest blueprint that leaves room for the cheapest in the others."""
    spec = seed_spaces(config.total_slots, config.profile).action
    found = []
    for seed in seeds:
        host = HostEpisode(config, run_seed, int(seed), spec)
        left = host.growth.budget_params
        topology: list[GrownSeed] = []
        every = [{b: c for b, c in enumerate(shape.costs) if c is not None} for shape in host.growth.slot_shapes]
        for s, costs in enumerate(every):
            rest = sum(min(later.values()) for later in every[s + 1 :])
            fitting = [b for b in costs if costs[b] <= left - rest] or [b for b in costs if costs[b] <= left]
            if fitting:
                best = max(fitting, key=costs.__getitem__)
                topology.append(GrownSeed(s, best, 0, 1.0))
                left -= costs[best]
        found.append(tuple(topology))
    return found


def matched_epochs(config: EnvConfig, run_seed: int, leader: Row) -> int:
    """Epochs of a host built with the leader's final topology that cost what its training cost."""
    host = HostEpisode(config, run_seed, leader.seed, seed_spaces(config.total_slots, config.profile).action)
    epochs = round(leader.training_flops / training_flops(host, leader.grown))
    return min(max(1, epochs), LONGEST * host.horizon_epochs)
