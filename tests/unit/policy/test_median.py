"""Deterministic decisions: compared with the median of many draws, in episodes and in sessions."""

from __future__ import annotations

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.distribution import has_median, median_noise, next_hazard
from actors.rollout.wave import Provenance, run_wave
from actors.sessions.local import LocalPolicy
from actors.types.actions import Op, independent_spec
from actors.types.episode import Episode
from actors.types.spaces import Spaces
from tests.support.env.walks import TINY
from tests.support.learning.slow_policy import everything_legal, slow_to_act
from tests.support.learning.toy import SPACES

ENV = EnvConfig(**TINY)
SOURCE = Provenance(version=0, generation=0, state_stride=1, run_seed=3)


def first_acts(episodes: list[Episode]) -> set[int]:
    """Return the first steps with an op other than WAIT."""
    return {int(np.argmax(episode.actions[:, 0] != Op.WAIT)) for episode in episodes}


@pytest.mark.parametrize("seed", range(5))
def test_the_time_to_act_is_the_median_of_many_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    waits = rng.uniform(0.7, 1.0, 30) if seed else np.full(30, 0.9)
    drawn = np.argmax(np.concatenate([rng.random((20_000, 30)) >= waits, np.ones((20_000, 1))], 1), 1)
    hazard, step = np.zeros(1), 0
    while median_noise(hazard, 2)[0, 0] < waits[step]:  # WAIT is the first choice
        hazard = next_hazard(hazard, np.array([[Op.WAIT, 0]]), np.log([[waits[step], 1.0]]).astype(np.float32))
        step += 1
    assert step == np.median(drawn)


def test_an_episode_acts_where_its_most_likely_ops_never_would() -> None:
    fleet = SeedTrainingFleet(ENV, 4, 3)
    network = slow_to_act(fleet.spaces, wait=0.9)
    assert first_acts(run_wave(fleet, network, range(4), SOURCE, deterministic=True)) == {6}  # 0.9^6 > 0.5 > 0.9^7
    assert len(first_acts(run_wave(fleet, network, range(4), SOURCE))) > 1
    state, seen = network.initial_state(4), fleet.reset(range(4))
    greedy = network.act(seen.obs, seen.blueprint_indices, seen.masks, state, np.zeros((4, 6)), deterministic=True)[0]
    assert (greedy.actions[:, 0] == Op.WAIT).all()


def test_the_noise_stays_below_one() -> None:
    """A policy that has waited for very long, which was very unlikely, acts; it never runs out of choices."""
    assert median_noise(np.array([0.7, 50.0]), 1).max() < 1.0


def test_an_exported_session_continues_with_its_hazard() -> None:
    given = np.zeros(SPACES.obs_size, np.float32), np.full(SPACES.slots, -1), everything_legal(SPACES)
    whole = [*[Op.WAIT] * 6, Op.GERMINATE]
    with LocalPolicy(slow_to_act(SPACES, wait=0.9)) as policy, policy.open(SPACES) as first:
        assert [first.step(*given).action[0] for _ in range(4)] == whole[:4]
        moved = policy.open(SPACES, state=first.exported)
        assert [moved.step(*given).action[0] for _ in range(3)] == whole[4:]
        # After an act, the time to the next starts again.
        assert [moved.step(*given).action[0] for _ in range(8)] == [*whole, Op.WAIT]
        moved.reset()
        assert [moved.step(*given).action[0] for _ in range(7)] == whole


def test_spaces_without_wait_have_no_median() -> None:
    assert has_median(SPACES)
    assert not has_median(Spaces.flat(independent_spec((3, 2)), 4))
