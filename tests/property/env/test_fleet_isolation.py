"""Environments of a fleet do not affect each other, and what learns apart does not affect its host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.layers import convolution
from actors.rollout.wave import PolicyNoise
from actors.types.fleet_step import FleetStep
from tests.property.env.test_fleet import CONFIGS, left_to_long
from tests.support.env.fleets import BACKENDS, Backend, break_params, host, random_actions, seed, stack

ROOT = Path(__file__).parents[3]


def play(name: str, seeds: Sequence[int], noise_seeds: Sequence[int]) -> list[FleetStep]:
    fleet = SeedTrainingFleet(CONFIGS[name], len(seeds), 0)
    noise, seen = PolicyNoise(7, noise_seeds, 6), [fleet.reset(seeds)]
    for _ in range(CONFIGS[name].max_horizon_epochs):
        seen.append(fleet.step(random_actions(fleet, seen[-1], noise.step())))
    return seen


def assert_alike(steps: Sequence[FleetStep], others: Sequence[FleetStep], envs: list[int]) -> None:
    for a, b in zip(steps, others, strict=True):
        np.testing.assert_array_equal(a.obs[envs], b.obs[envs])
        np.testing.assert_array_equal(a.rewards[envs], b.rewards[envs])


def check_neighbors(name: str, kernels: bool = True) -> None:
    """The first two environments are bit-equal for any tasks, seeds and actions of the others, at a fixed E.

    So the result of an environment depends neither on the number of those that an epoch's passes hold, nor on its place
    among them. Without kernels, PyTorch's operations train convolutional hosts, as on a GPU.
    """
    if not kernels:
        convolution.suits = lambda h: False
    assert_alike(play(name, [11, 4, 1, 2], [0, 4, 1, 2]), play(name, [11, 4, 21, 22], [0, 4, 31, 32]), [0, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_environments_change_no_bit(backend: Backend) -> None:
    check_neighbors(backend)


@pytest.mark.parametrize(
    ("name", "kernels"), [("mixed", True), *left_to_long(("mixed", False), ("sequences", True), ("images", True))]
)
def test_other_environments_change_no_bit_of_convolutional_hosts(name: str, kernels: bool) -> None:
    """In a separate process, whose matrix products and convolutions round a row alike whatever the other rows are.

    This holds by default with AVX-512; with AVX2, another row may change the last bit unless it is set.
    """
    program = f"from tests.property.env.test_fleet_isolation import *; check_neighbors({name!r}, {kernels})"
    env = os.environ | {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize(("backend", "least"), [("numba", 1), ("torch", 2)])
def test_the_number_of_environments_changes_no_bit(backend: Backend, least: int) -> None:
    """On one thread."""
    alone = play(backend, [11, 12][:least], [0, 1][:least])
    among = play(backend, [11, 12, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6])
    assert_alike(alone, among, [*range(least)])


def learnt(name: str, learning: bool, broken: bool) -> list[NDArray[Any]]:
    """Blend a column in, then let another column and a seed learn, of which the seed is pruned, or nothing. Return
    everything that the model has, and its accuracies."""
    tasks = ("spirals",) if name in BACKENDS else CONFIGS[name].tasks[:1]
    fleet = SeedTrainingFleet(replace(CONFIGS[name], tasks=tasks, host_width=6, horizon_epochs=10), 2, 0)
    fleet.reset([3, 4])
    learn = [(1, 4, 7), (5, 4, 0), (1, 1, 6), (5, 1, 0)] if learning else [(0, 0, 0)] * 4
    for op, slot, blueprint in [(1, 3, 8), (5, 3, 0), (5, 3, 0), *learn]:
        fleet.step(np.array([[op, slot, blueprint, 0, 2 if op == 1 else 0, 0]] * 2))
        assert not fleet.illegal
    for slot in (1, 4) if broken else ():
        break_params(fleet, 0, slot)
    for op, slot in [(0, 0), (3, 1) if learning else (0, 0), (0, 0)]:
        fleet.step(np.array([[op, slot, 0, 0, 0, 0]] * 2))
        assert not fleet.illegal
    networks, row = stack(fleet, 0)
    running: dict[str, Any] = getattr(networks, "running", {})
    parts = [part for vectors in (host(fleet, 0), seed(fleet, 0, 3)) for part in vectors[:3]]
    found = [*(values for part in parts for values in part.values()), *(m.mean[row].numpy() for m in running.values())]
    return [*found, np.array(fleet.episodes[0].accuracies)]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("name", [*BACKENDS, "sequences", *left_to_long("images")])
def test_a_seed_and_a_column_that_learn_change_no_bit_of_their_model(name: str, broken: bool) -> None:
    """Neither of the host nor of a column that has joined it, nor of their optimizers, even if what learns is not a
    number."""
    alone, beside = learnt(name, False, False), learnt(name, True, broken)
    assert len(alone) > 40
    for a, b in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [*BACKENDS, "images"])
def test_only_a_broken_environment_is_rolled_back(name: str) -> None:
    """NaN in one host: its episode ends with a penalty, and running statistics are restored; the others are bit-equal
    to a run without NaN."""
    config = CONFIGS[name] if name in BACKENDS else replace(CONFIGS[name], host_width=6)
    calm, hurt = SeedTrainingFleet(config, 4, 0), SeedTrainingFleet(config, 4, 0)
    waits = np.zeros((4, 6), dtype=np.int64)
    for fleet in (calm, hurt):
        fleet.reset(range(4))
        fleet.step(waits)
    running: dict[str, Any] = getattr(hurt.networks, "running", {})
    before = {key: m.mean[2].clone() for key, m in running.items()}
    break_params(hurt, 2)
    b = hurt.step(waits)
    assert_alike([calm.step(waits)], [b], [0, 1, 3])
    assert b.terminated.tolist() == [False, False, True, False]
    assert b.end_reasons[2] == "governor"
    assert b.rewards[2] <= -5.0 + 1e-6
    assert bool(before) == (name == "images")
    assert all(torch.equal(m.mean[2], before[key]) for key, m in running.items())
    for _ in range(2):
        assert_alike([calm.step(waits)], [hurt.step(waits)], [0, 1, 3])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_ended_environment_can_idle_for_any_number_of_steps(backend: Backend) -> None:
    """It idles while others are reset several times, also when all have ended, and can then be reset."""
    config = EnvConfig(tasks=("spirals",), horizon_epochs=3, inner_steps=2, backend=backend)
    fleet = SeedTrainingFleet(config, 2, 0)
    fleet.reset([0, 1])
    for episode in range(4):
        for epoch in range(3):
            step = fleet.step(np.zeros((2, 6), dtype=np.int64))
            assert step.terminated.tolist() == [epoch == 2, epoch == 2 and episode == 0]
        idle = fleet.step(np.zeros((2, 6), dtype=np.int64))
        np.testing.assert_array_equal(idle.rewards, np.zeros(2))
        fleet.reset_envs({0: 2 + episode})
    again = fleet.reset_envs({1: 1})
    np.testing.assert_array_equal(again.obs[1], SeedTrainingFleet(config, 2, 0).reset([0, 1]).obs[1])
