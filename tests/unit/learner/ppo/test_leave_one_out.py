"""The leave-one-out baseline, against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.config import ActingConfig, ActorsConfig, ConfigError, EnvConfig, GymConfig, PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.rollout.sampler import make_sampler
from actors.rollout.wave import Provenance
from deploy.config.schema import Config
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.gae import leave_one_out
from tests.support.learning.batches import targets_of, toy_ppo
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave


def test_it_is_the_mean_of_the_others_at_the_same_step() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        episodes, steps = int(rng.integers(1, 9)), int(rng.integers(1, 6))
        advantages = rng.standard_normal((episodes, steps)).astype(np.float32)
        lengths, group = rng.integers(1, steps + 1, episodes), rng.integers(0, 3, episodes)
        valid = np.arange(steps) < lengths[:, None]
        advantages[~valid] = np.nan  # padding is never read
        expected = np.zeros_like(advantages)
        for e, t in zip(*np.nonzero(valid), strict=True):
            others = [advantages[o, t] for o in range(episodes) if o != e and group[o] == group[e] and valid[o, t]]
            expected[e, t] = advantages[e, t] - (sum(others) / len(others) if others else 0.0)
        found = leave_one_out(*map(torch.from_numpy, (advantages, valid, group)))
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_the_update_subtracts_what_episodes_of_one_seed_have_in_common() -> None:
    network = toy_network()
    seeds = [toy_seed(n, truncated=False, salt=n) for n in (6, 6, 6, 5, 5, 4)]
    batch = make_batch(toy_wave(network, seeds), SPACES)
    assert batch.seed_index.tolist() == [0, 0, 0, 1, 1, 2]
    first = np.repeat(batch.seed_index.numpy(), batch.episode_lengths) == 0
    lucky = batch._replace(rewards=batch.rewards + 5.0 * torch.from_numpy(first))
    for subtracted in (True, False):
        config = LearnerConfig(episodes_per_seed=3 if subtracted else 1)
        plain, changed = (targets_of(network, one, config).advantages for one in (batch, lucky))
        assert torch.allclose(plain, changed, atol=1e-4) == subtracted


def test_a_wave_plays_each_seed_several_times_and_the_update_counts_them() -> None:
    env = EnvConfig(tasks=("spirals",), horizon_epochs=4, inner_steps=2, device="cpu")
    acting = ActingConfig(env=env, actors=ActorsConfig(count=1, envs_per_actor=6), episodes_per_seed=3)
    sampler = make_sampler(acting, 0, 0, None)
    network = FactoredRecurrentActorCritic(sampler.spaces, PolicyConfig())
    episodes = sampler.sample(network, Provenance(0, 0, 1, 0))
    assert episodes[0].seed != episodes[3].seed
    for own in (episodes[:3], episodes[3:]):
        assert len({(e.seed, e.obs[0].tobytes()) for e in own}) == 1  # the same host
        assert len({e.actions.tobytes() for e in own}) > 1
    update = toy_ppo(1e-3, network, episodes_per_seed=3)
    assert update(make_batch(episodes, sampler.spaces), 0, 0)["same_seed_episodes"] == 2.0


@pytest.mark.parametrize(
    ("learner", "others", "message"),
    [
        ({"episodes_per_seed": 2, "batch_steps": 4096}, {"gym": GymConfig("CartPole-v1")}, r"gym\.id"),
        ({"episodes_per_seed": 3}, {}, "is 3: it must divide actors.envs_per_actor, 8"),
        ({"episodes_per_seed": 0}, {}, "it must be at least 1"),
    ],
)
def test_it_needs_episodes_of_one_seed(learner: dict[str, Any], others: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(learner=LearnerConfig(**learner), **others)
