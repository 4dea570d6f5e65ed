"""Episodes with numbers that cannot be trained on are dropped, and nothing else is."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from actors.config import GymConfig
from actors.errors import UserError
from actors.gym.fleet import GymFleet
from actors.gym.unified import UnifiedEnv
from actors.rollout.sampler import EpisodeSeeds, StreamSampler
from actors.rollout.stream import MAX_REJECTED, EpisodeStream
from actors.rollout.wave import Provenance
from tests.property.rollout.test_gym_stream import network
from tests.support.env.gym_envs import Scripted

SOURCE = Provenance(3, 1, 4, 0)
NAN = float("nan")


class Spoilt(Scripted):
    """Adds `reward` and `value` to the last reward and observation of the episodes of every `every`th seed, or `value`
    to their first observation."""

    def __init__(self, every: int = 3, reward: float = NAN, value: float = 0.0, first: bool = False) -> None:
        super().__init__(longest=9)
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float64)
        self.every, self.reward, self.value, self.first = every, reward, value, first

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self.truncates = True
        return obs + (self.value if self.first and self.seed % self.every == 0 else 0.0), info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.first or self.count < self.length or self.seed % self.every:
            return obs, reward, *rest
        return obs + self.value, reward + self.reward, *rest

    def _look(self) -> Any:
        return super()._look().astype(np.float64)


gymnasium.register("tests/Spoilt-v0", entry_point=Spoilt)


def stream(every: int, mode: AutoresetMode, segment: int = 100, **kwargs: Any) -> EpisodeStream:
    envs = [lambda: UnifiedEnv(Spoilt(every, **kwargs), "spoilt")] * 4
    seeds = itertools.count(1)
    fleet = GymFleet("spoilt", SyncVectorEnv(envs, autoreset_mode=mode), lambda row: next(seeds))
    return EpisodeStream(fleet, network(fleet.spaces), 0, segment)


def test_only_episodes_with_such_a_number_are_dropped() -> None:
    """Every other episode is, bit by bit, what it is beside environments without any."""
    spoilt, clean = (stream(every, AutoresetMode.DISABLED) for every in (3, 10**9))
    policy = network(spoilt.fleet.spaces)
    kept, whole = ([e for _ in range(60) for e in made.advance(policy, SOURCE)] for made in (spoilt, clean))
    assert {e.seed for e in kept} == {e.seed for e in whole if e.seed % 3}
    assert spoilt.rejected == sum(e.seed % 3 == 0 for e in whole) >= 10
    assert clean.rejected == 0
    by_seed = {e.seed: e for e in whole}
    for episode in kept:
        episode.validate()
        assert np.array_equal(episode.obs, by_seed[episode.seed].obs)
        assert np.array_equal(episode.actions, by_seed[episode.seed].actions)


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        *((mode, given) for mode in AutoresetMode for given in ({}, {"value": NAN, "reward": 0.0})),
        *((mode, {"value": NAN, "first": True}) for mode in AutoresetMode),
        *((AutoresetMode.DISABLED, {"reward": reward}) for reward in (float("-inf"), 1e39)),
        (AutoresetMode.SAME_STEP, {"value": 1e300, "reward": 0.0}),
    ],
)
def test_nothing_that_is_shipped_holds_such_a_number(mode: AutoresetMode, given: dict[str, Any]) -> None:
    """1e39 is finite in float64, and not in the float32 that it is shipped as. The seeds of later episodes are drawn by
    the environment, where it resets by itself."""
    made = stream(2, mode, segment=3, **given)
    policy = network(made.fleet.spaces)
    kept = [e for _ in range(60) for e in made.advance(policy, SOURCE)]
    assert made.rejected >= 10
    assert len(kept) >= 10
    for episode in kept:
        episode.validate()


def test_environments_that_give_nothing_else_end_the_run() -> None:
    made = stream(1, AutoresetMode.DISABLED)
    policy = network(made.fleet.spaces)
    with pytest.raises(UserError, match=r"gave a reward that is NaN.* 100 episodes in a row") as refusal:
        assert not any(made.advance(policy, SOURCE) for _ in range(9 * MAX_REJECTED))
    assert "\n" not in str(refusal.value)


def test_an_episode_that_cannot_be_compared_ends_the_comparison() -> None:
    sampler = StreamSampler(GymConfig(id="tests/Spoilt-v0"), 2, 0, EpisodeSeeds(0, 0, None))
    policy = network(sampler.spaces)
    while not sampler.rejected:
        sampler.sample(policy, SOURCE)
    rejected = sampler.rejected
    assert [row["seed"] for row in sampler.play(policy, SOURCE, [1, 2, 4], False)] == [1, 2, 4]
    assert sampler.rejected == rejected  # it counts from the start of the run
    with pytest.raises(UserError, match="cannot be compared"):
        sampler.play(policy, SOURCE, [1, 3], False)
    sampler.close()
