"""Fleets of mixed hosts with partial resets: each environment equals the reference."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from actors.config import EnvConfig
from actors.env import mixed_networks
from actors.env.episode.host_episode import HostEpisode
from actors.env.mixed_networks import HostKind, host_kind
from actors.env.seed_fleet import SeedTrainingFleet
from tests.support.env.fleets import random_actions
from tests.support.env.reference_env import ReferenceEnv

CONFIG = EnvConfig(
    tasks=("wave_forms", "signals", "digits_image", "spirals", "moons"),
    horizon_epochs=(3, 6),
    inner_steps=(1, 2),
    batch_size=16,
    budget_ratio=40.0,
)
ENVS = 7


def kind_of(episode: HostEpisode) -> HostKind:
    return host_kind(episode.host, episode.task.shape)


@pytest.mark.parametrize("most", [2, pytest.param(16, marks=pytest.mark.long)], ids=["blocks of two", "large blocks"])
def test_partial_resets_of_mixed_hosts_equal_the_reference(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random actions, and resets of what has ended and of some others, beside single environments."""
    monkeypatch.setattr(mixed_networks, "MAX_BLOCK_ENVS", most)
    fleet, rng = SeedTrainingFleet(CONFIG, ENVS, 0, torch.float64), np.random.default_rng(most)
    single = [ReferenceEnv(CONFIG, 0, dtype=torch.float64) for _ in range(ENVS)]
    seen, met = fleet.reset(range(ENVS)), Counter[str]()
    for e, env in enumerate(single):
        env.reset(seed=e)
    for _ in range(12):
        actions = random_actions(fleet, seen, rng.uniform(size=(ENVS, 6)))
        seen = fleet.step(actions)
        for e, env in enumerate(single):
            observation, reward, terminated, _, info = env.step(actions[e])
            np.testing.assert_allclose(seen.obs[e], observation["obs"], rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(seen.rewards[e], reward, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(seen.masks.rest[e], info["masks"].rest)
            assert seen.terminated[e] == terminated
        again = np.flatnonzero(seen.terminated | (rng.random(ENVS) < 0.1)).tolist()
        new = {e: int(rng.integers(2**20)) for e in again}
        if new:
            seen = fleet.reset_envs(new)
        for e, seed in new.items():
            before = kind_of(single[e].episode)
            np.testing.assert_allclose(seen.obs[e], single[e].reset(seed=seed)[0]["obs"], rtol=1e-6, atol=1e-7)
            met["moved" if kind_of(single[e].episode) != before else "stayed"] += 1
        met["some"] += 0 < len(new) < ENVS
    assert min(met["moved"], met["stayed"], met["some"]) >= 5, met
