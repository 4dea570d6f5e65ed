"""Hosts that start with seeds, and the accuracy on test rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.slots.topology import GrownSeed
from tests.support.env.reference_env import ReferenceEnv

PRICES: dict[str, Any] = {"points_per_doubling": 2.0, "points_per_compute_doubling": 0.5}
CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=3, inner_steps=4, **PRICES, device="cpu")
BUILT = (GrownSeed(0, 2, 0, 1.0), GrownSeed(2, 3, 2, 0.7), GrownSeed(4, 9, 0, 0.5))  # the last is a column
WAITS: NDArray[Any] = np.zeros((2, 6), dtype=np.int64)


@pytest.mark.parametrize("task", ["spirals", "signals"])
def test_a_host_with_initial_seeds_trains_and_tests_as_the_reference(task: str) -> None:
    config = replace(CONFIG, tasks=(task,), inner_steps=2)
    fleet = SeedTrainingFleet(config, 2, 7, torch.float64, read_test=True)
    fleet.set_topologies([BUILT, ()])
    fleet.reset([3, 4])
    telemetry: tuple[dict[str, float], ...] = ()
    while fleet.running:
        telemetry = fleet.step(WAITS).telemetry
    for seed, topology, row, timeline in zip((3, 4), (BUILT, ()), telemetry, fleet.timelines(), strict=True):
        env = ReferenceEnv(config, 7, dtype=torch.float64)
        env.reset(seed, topology)
        while not env.step(WAITS[0])[2]:
            pass
        np.testing.assert_allclose(timeline.accuracy, env.episode.timeline.accuracy, rtol=1e-9)
        assert row["test_accuracy"] == pytest.approx(env.test_accuracy(), rel=1e-9)


def test_a_host_with_initial_seeds_starts_as_the_bare_one_and_is_charged() -> None:
    fleet = SeedTrainingFleet(CONFIG, 2, 7)
    fleet.set_topologies([BUILT, ()])
    fleet.reset([3, 3])
    rewards = fleet.step(WAITS).rewards
    built, bare = fleet.episodes
    assert built.accuracies[0] == bare.accuracies[0]
    assert built.topology() == BUILT
    assert built.growth.added_params() == sum(built.growth.seed_cost(g.slot, g.blueprint, g.blend) for g in BUILT) > 0
    size = np.log2(1 + built.growth.added_params() / built.growth.host_params)
    paid = 2.0 * size + 0.5 * built.growth.compute.doublings()
    assert rewards[0] == pytest.approx(built.accuracies[1] - built.accuracies[0] - paid, abs=1e-4)
    assert not built.masks().slot[1, 0]  # a filled slot cannot be germinated
    fleet.step(WAITS)
    assert "test_accuracy" not in fleet.step(WAITS).telemetry[0]  # it is reported on request only


def test_initial_seeds_must_fit_the_budget() -> None:
    fleet = SeedTrainingFleet(replace(CONFIG, budget_ratio=0.5), 1, 7)
    fleet.set_topologies([BUILT])
    with pytest.raises(ValueError, match="budget"):
        fleet.reset([3])
