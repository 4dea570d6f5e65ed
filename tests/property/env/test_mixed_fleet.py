"""Fleets of mixed hosts with partial resets: each environment equals the reference, and idle rows are reused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from actors.config import EnvConfig
from actors.env import mixed_networks
from actors.env.episode.host_episode import HostEpisode
from actors.env.mixed_networks import MIN_BLOCK_ENVS, HostKind, MixedNetworks, host_kind
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import RandomPolicy
from actors.policy.state import PolicyState, StateSizes
from actors.types.actions import ActionMasks
from tests.support.env import cnn
from tests.support.env.reference_env import ReferenceEnv

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(300)
NO_STATE = PolicyState.zeros(StateSizes(), 0)
CONFIG = EnvConfig(
    tasks=("sequences", "wide_sequences", "images", "spirals", "moons"),
    horizon_epochs=(3, 6),
    observe_time=False,
    inner_steps=(1, 2),
    batch_size=16,
    budget_ratio=40.0,
)
ENVS, KINDS = 7, 4


@pytest.fixture(autouse=True)
def _known_tasks() -> Iterator[None]:
    cnn.register()
    yield
    cnn.forget()


def kind_of(episode: HostEpisode) -> HostKind:
    return host_kind(episode.host, episode.task.shape)


def play(steps: int, seed: int) -> Counter[str]:
    """Play random actions and partial resets beside single environments; count what happened."""
    fleet = SeedTrainingFleet(CONFIG, ENVS, 0, torch.float64)
    single = [ReferenceEnv(CONFIG, 0, dtype=torch.float64) for _ in range(ENVS)]
    policy, rng = RandomPolicy(fleet.spaces), np.random.default_rng(seed)
    fleet.reset(range(ENVS))
    seen = [env.reset(seed=e) for e, env in enumerate(single)]
    met: Counter[str] = Counter()
    for _ in range(steps):
        obs = np.stack([s["obs"] for s, _ in seen])
        blueprints = np.stack([s["blueprint_indices"] for s, _ in seen])
        masks = ActionMasks(*(np.stack(part) for part in zip(*(info["masks"] for _, info in seen), strict=True)))
        actions = policy.act(obs, blueprints, masks, NO_STATE, rng.uniform(size=(ENVS, 6)))[0].actions
        now = fleet.step(actions)
        ended = np.zeros(ENVS, dtype=np.bool_)
        for e, env in enumerate(single):
            observation, reward, terminated, _, info = env.step(actions[e])
            np.testing.assert_allclose(now.obs[e], observation["obs"], rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(now.rewards[e], reward, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(now.masks.rest[e], info["masks"].rest)
            assert now.terminated[e] == terminated
            ended[e], seen[e] = terminated, (observation, info)
        again = ended | (rng.random(ENVS) < 0.1)
        before = [kind_of(env.episode) for env in single]
        if new := {int(e): int(rng.integers(2**20)) for e in np.flatnonzero(again)}:
            now = fleet.reset_envs(new)
            for e, own in new.items():
                seen[e] = single[e].reset(seed=own)
                np.testing.assert_allclose(now.obs[e], seen[e][0]["obs"], rtol=1e-6, atol=1e-7)
                met["moved" if kind_of(single[e].episode) != before[e] else "stayed"] += 1
        met["some" if 0 < len(new) < ENVS else "none or all"] += 1
    return met


@pytest.mark.parametrize("most", [2, 16], ids=["blocks of two", "large blocks"])
def test_partial_resets_of_mixed_hosts_equal_the_reference(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_networks, "MAX_BLOCK_ENVS", most)
    met = play(16, seed=most)
    assert min(met["moved"], met["stayed"], met["some"]) >= 8, met


def test_idle_rows_do_not_accumulate() -> None:
    """Over many resets of a few environments; each has one row, in a block of its kind."""
    fleet = SeedTrainingFleet(CONFIG, ENVS, 0)
    rng = np.random.default_rng(5)
    fleet.reset(range(ENVS))
    found = []
    for _ in range(40):
        some = rng.permutation(ENVS)[: rng.integers(1, 4)]
        fleet.reset_envs({int(e): int(rng.integers(2**20)) for e in some})
        networks = fleet.networks
        assert isinstance(networks, MixedNetworks)
        found.append(Counter(b.kind for b in networks.blocks for _ in b.envs))
        assert sorted(e for b in networks.blocks for e in b.envs if e is not None) == list(range(ENVS))
        for block in networks.blocks:
            assert not block.idle
            for e in block.envs:
                assert e is None or kind_of(fleet.episodes[e]) == block.kind
    assert max(max(rows.values()) for rows in found) <= ENVS + MIN_BLOCK_ENVS
    assert max(sum(rows.values()) for rows in found) <= KINDS * (ENVS + MIN_BLOCK_ENVS)
    assert sum(found[-1].values()) <= max(sum(rows.values()) for rows in found[:20])
