"""Time limits: terminated and shown, or truncated and hidden, drawn from a range."""

from __future__ import annotations

import pytest

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import NeverGrow
from actors.rollout.wave import Provenance, run_wave
from actors.types.episode import EndReason
from tests.support.env.walks import TINY, WAIT, tiny_reference


@pytest.mark.parametrize("time_limit", ["terminated", "truncated"])
def test_a_drawn_horizon_ends_an_episode_and_is_shown_or_hidden(time_limit: str) -> None:
    fleet = SeedTrainingFleet(EnvConfig(**TINY | {"horizon_epochs": (3, 6), "time_limit": time_limit}), 24, 0)
    episodes = run_wave(fleet, NeverGrow(fleet.spaces), range(24), Provenance(0, 0, 8, 0))
    assert {len(e) for e in episodes} == {3, 4, 5, 6}
    for e in episodes:
        assert (e.terminated, e.truncated) == (time_limit == "terminated", time_limit == "truncated")
        assert e.end_reason is EndReason.HORIZON
        assert e.obs[:, 0].any() == e.terminated


def test_a_panic_on_the_last_epoch_terminates_even_with_a_truncated_limit() -> None:
    env = tiny_reference(horizon_epochs=4, time_limit="truncated")
    for poisoned in (False, True):
        env.reset(seed=0)
        for _ in range(3):
            env.step(WAIT)
        if poisoned:
            env.network.group.params["in.w"].data.fill_(float("nan"))
        _, reward, terminated, truncated, info = env.step(WAIT)
        assert (terminated, truncated) == (poisoned, not poisoned)
        assert info["end_reason"] is (EndReason.GOVERNOR if poisoned else EndReason.HORIZON)
    assert float(reward) == pytest.approx(-5.0)  # nothing grew, so there is only the penalty
