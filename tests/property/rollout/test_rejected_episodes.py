"""Episodes with numbers that cannot be trained on are dropped, and nothing else is."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
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


class Spoilt(Scripted):
    """Gives a reward that is NaN in the last step of the episodes of every `every`th seed."""

    def __init__(self, every: int = 3) -> None:
        super().__init__(longest=9)
        self.every = every

    def reset(self, **kwargs: Any) -> Any:
        shown = super().reset(**kwargs)
        self.truncates = True
        return shown

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, float("nan") if self.count == self.length and self.seed % self.every == 0 else reward, *rest


gymnasium.register("tests/Spoilt-v0", entry_point=Spoilt)


def stream(every: int, mode: AutoresetMode, segment: int = 100) -> EpisodeStream:
    envs = [lambda: UnifiedEnv(Spoilt(every), "spoilt")] * 4
    seeds = itertools.count(1)
    fleet = GymFleet("spoilt", SyncVectorEnv(envs, autoreset_mode=mode), lambda row: next(seeds))
    return EpisodeStream(fleet, network(fleet.spaces), 0, segment)


def test_only_episodes_with_such_a_number_are_dropped() -> None:
    """Every other episode is, bit by bit, what it is beside environments without any."""
    spoilt, clean = (stream(every, AutoresetMode.DISABLED) for every in (3, 10**9))
    policy = network(spoilt.fleet.spaces)
    kept = [e for _ in range(60) for e in spoilt.advance(policy, SOURCE)]
    whole = [e for _ in range(60) for e in clean.advance(policy, SOURCE)]
    assert {e.seed for e in kept} == {e.seed for e in whole if e.seed % 3}
    assert spoilt.rejected == sum(e.seed % 3 == 0 for e in whole) >= 10
    assert clean.rejected == 0
    by_seed = {e.seed: e for e in whole}
    for episode in kept:
        episode.validate()
        assert np.array_equal(episode.obs, by_seed[episode.seed].obs)
        assert np.array_equal(episode.actions, by_seed[episode.seed].actions)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nothing_that_is_shipped_holds_such_a_number(mode: AutoresetMode) -> None:
    """The seeds of later episodes are drawn by the environment, where it resets by itself."""
    made = stream(2, mode, segment=3)
    kept = [e for _ in range(60) for e in made.advance(network(made.fleet.spaces), SOURCE)]
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
    assert [row["seed"] for row in sampler.play(policy, SOURCE, [1, 2, 4], False)] == [1, 2, 4]
    with pytest.raises(UserError, match="cannot be compared"):
        sampler.play(policy, SOURCE, [1, 3], False)
    sampler.close()
