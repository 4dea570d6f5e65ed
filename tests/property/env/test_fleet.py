"""Fleets equal the one-environment reference, and environments do not affect each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked.networks import TorchNetworks
from actors.policy.baselines import RandomPolicy
from actors.policy.state import PolicyState, StateSizes
from actors.rollout.wave import PolicyNoise
from actors.types.fleet_step import FleetStep
from tests.support.env.fleets import BACKENDS, Backend, assert_same_params, break_host, synchronize
from tests.support.env.reference_env import ReferenceFleet

torch.set_num_threads(1)
CONFIGS = {
    name: EnvConfig(host_width=(5, 32), horizon_epochs=(6, 10), inner_steps=(2, 4), budget_ratio=40.0, backend=name)
    for name in BACKENDS
}
"""Widths from 5: rounding grows too fast in LayerNorms of two units, see `test_fleet_columns`."""
both_backends = pytest.mark.parametrize("backend", BACKENDS)
NO_STATE = PolicyState.zeros(StateSizes(), 0)


def _reference(config: EnvConfig, num_envs: int, dtype: torch.dtype) -> ReferenceFleet:
    fleet = ReferenceFleet(config, num_envs, run_seed=0)
    for env in fleet.envs:
        env.dtype = dtype
    return fleet


def _act(policy: RandomPolicy, seen: FleetStep, noise: NDArray[np.float64]) -> NDArray[np.int64]:
    return policy.act(seen.obs, seen.blueprint_indices, seen.masks, NO_STATE, noise)[0].actions


def _assert_same(a: FleetStep, b: FleetStep, rtol: float, atol: float) -> None:
    for mine, theirs in zip(a.masks, b.masks, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(a.blueprint_indices, b.blueprint_indices)
    np.testing.assert_array_equal(a.terminated, b.terminated)
    np.testing.assert_allclose(a.obs, b.obs, rtol=rtol, atol=atol)
    np.testing.assert_allclose(a.rewards, b.rewards, rtol=rtol, atol=atol)
    assert a.end_reasons == b.end_reasons


@both_backends
@settings(max_examples=2, deadline=None)
@given(first_seed=st.integers(0, 2**20))
def test_whole_episodes_equal_the_reference_in_double_precision(backend: Backend, first_seed: int) -> None:
    """Parameters agree to 1e-9, and so do observations, rewards and masks, without synchronizing."""
    config = CONFIGS[backend]
    reference, fleet = _reference(config, 5, torch.float64), SeedTrainingFleet(config, 5, 0, torch.float64)
    seeds = range(first_seed, first_seed + 5)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(1, seeds, 6)
    a, b = reference.reset(seeds), fleet.reset(seeds)
    for _ in range(config.max_horizon_epochs):
        _assert_same(a, b, rtol=1e-6, atol=1e-7)  # observations are fp32
        actions = _act(policy, a, noise.step())
        a, b = reference.step(actions), fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-9, atol=1e-9)


@both_backends
@pytest.mark.parametrize("blend", range(3))
def test_every_blueprint_and_blend_equals_the_reference(backend: Backend, blend: int) -> None:
    """Each blueprint is germinated, trained, blended and held, in one environment each."""
    config = replace(
        CONFIGS[backend], tasks=("spirals",), host_width=12, horizon_epochs=6, inner_steps=3, budget_ratio=20.0
    )
    count = len(MLP_BLUEPRINTS) - 1
    reference, fleet = _reference(config, count, torch.float64), SeedTrainingFleet(config, count, 0, torch.float64)
    a, b = reference.reset(range(count)), fleet.reset(range(count))
    script = [(1, 1), (5, 1), (5, 1), (0, 0), (2, 1), (0, 0)]
    for op, slot in script:
        target = 1 if op == 2 else 2
        actions = np.array([[op, slot, e + 1, blend, target, 1] for e in range(count)])
        a, b = reference.step(actions), fleet.step(actions)
        _assert_same(a, b, rtol=1e-6, atol=1e-7)
        assert_same_params(fleet, reference, rtol=1e-9, atol=1e-9)


@both_backends
def test_each_epoch_equals_the_reference_in_single_precision(backend: Backend) -> None:
    """Synchronized after each epoch, so that differences are the rounding of one epoch.

    AdamW's first steps have the length of the learning rate however small the gradient. The narrower the host, the more
    gradients are hardly larger than their rounding.
    """
    config = replace(CONFIGS[backend], host_width=(12, 32))
    reference, fleet = _reference(config, 6, torch.float32), SeedTrainingFleet(config, 6, 0)
    seeds = range(6)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(3, seeds, 6)
    a = reference.reset(seeds)
    fleet.reset(seeds)
    for _ in range(config.max_horizon_epochs):
        actions = _act(policy, a, noise.step())
        a = reference.step(actions)
        fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-5, atol=1e-5)
        synchronize(fleet, reference)


def _play(backend: Backend, seeds: Sequence[int], noise_seeds: Sequence[int]) -> list[FleetStep]:
    config = CONFIGS[backend]
    fleet = SeedTrainingFleet(config, len(seeds), 0)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(7, noise_seeds, 6)
    seen = [fleet.reset(seeds)]
    for _ in range(config.max_horizon_epochs):
        seen.append(fleet.step(_act(policy, seen[-1], noise.step())))
    return seen


@both_backends
def test_other_environments_change_no_bit(backend: Backend) -> None:
    """The first environment is bit-equal for any tasks, seeds and actions of the others, at a fixed E."""
    plain = _play(backend, [11, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    other = _play(backend, [11, 21, 22, 23, 24, 25], [0, 31, 32, 33, 34, 35])
    for a, b in zip(plain, other, strict=True):
        np.testing.assert_array_equal(a.obs[0], b.obs[0])
        assert a.rewards[0] == b.rewards[0]


@pytest.mark.parametrize(("backend", "least"), [("numba", 1), ("torch", 2)])
def test_the_number_of_environments_changes_no_bit(backend: Backend, least: int) -> None:
    """On one thread."""
    alone = _play(backend, [11, 12][:least], [0, 1][:least])
    among = _play(backend, [11, 12, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6])
    for a, b in zip(alone, among, strict=True):
        np.testing.assert_array_equal(a.obs[:least], b.obs[:least])
        np.testing.assert_array_equal(a.rewards[:least], b.rewards[:least])


def test_padding_stays_exactly_zero() -> None:
    """Hosts of different tasks share a padded shape; padded parameters and moments are 0 after training."""
    fleet = SeedTrainingFleet(CONFIGS["torch"], 6, 0)
    seeds = range(6)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(5, seeds, 6)
    seen = fleet.reset(seeds)
    for _ in range(8):
        seen = fleet.step(_act(policy, seen, noise.step()))
    n = fleet.networks
    assert isinstance(n, TorchNetworks)
    for e, episode in enumerate(fleet.episodes):
        for values in (n.hosts.params, n.hosts.first_moment, n.hosts.second_moment):
            views = n.hosts.views(values)
            for name, p in episode.host.shapes().items():
                beyond = views[name][e].clone()
                beyond[: p.shape[0], : p.shape[1]] = 0.0
                assert not beyond.any(), name
        for s, slot in enumerate(episode.lifecycle.slots):
            if slot.active and s < fleet.config.slots:
                row = e * fleet.config.slots + s
                bank = n.banks[slot.blueprint]
                shapes = MLP_BLUEPRINTS[slot.blueprint].shapes(episode.host.width)
                views = bank.views(bank.params)
                for name, p in shapes.items():
                    beyond = views[name][row].clone()
                    beyond[: p.shape[0], : p.shape[1]] = 0.0
                    assert not beyond.any(), name


@both_backends
def test_only_a_broken_environment_is_rolled_back(backend: Backend) -> None:
    """NaN in one host: its episode ends with a penalty; the others are bit-equal to a run without NaN."""
    calm, hurt = SeedTrainingFleet(CONFIGS[backend], 4, 0), SeedTrainingFleet(CONFIGS[backend], 4, 0)
    waits = np.zeros((4, 6), dtype=np.int64)
    for fleet in (calm, hurt):
        fleet.reset(range(4))
        fleet.step(waits)
    break_host(hurt, 2)
    a, b = calm.step(waits), hurt.step(waits)
    assert b.terminated.tolist() == [False, False, True, False]
    assert b.end_reasons[2] == "governor"
    assert b.rewards[2] <= -5.0 + 1e-6
    keep = [0, 1, 3]
    for _ in range(3):
        np.testing.assert_array_equal(a.obs[keep], b.obs[keep])
        np.testing.assert_array_equal(a.rewards[keep], b.rewards[keep])
        a, b = calm.step(waits), hurt.step(waits)


@both_backends
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
