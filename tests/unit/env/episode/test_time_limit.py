"""Time limits: terminated and shown, or truncated and hidden, drawn from a range."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import NeverGrow
from actors.rollout.wave import Provenance, run_wave
from actors.types.episode import EndReason
from tests.support.env.walks import WAIT, tiny_reference

CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=6, inner_steps=1, batch_size=16)


@pytest.mark.parametrize("time_limit", ["terminated", "truncated"])
def test_the_horizon_ends_an_episode_as_configured(time_limit: Literal["terminated", "truncated"]) -> None:
    fleet = SeedTrainingFleet(replace(CONFIG, time_limit=time_limit), 2, 0)
    for e in run_wave(fleet, NeverGrow(fleet.spaces), range(2), Provenance(0, 0, 8, 0)):
        assert (e.terminated, e.truncated) == (time_limit == "terminated", time_limit == "truncated")
        assert (len(e), e.end_reason) == (6, EndReason.HORIZON)


def test_hidden_horizons_are_drawn_from_the_range() -> None:
    config = replace(CONFIG, horizon_epochs=(3, 6), time_limit="truncated")
    fleet = SeedTrainingFleet(config, 24, 0)
    episodes = run_wave(fleet, NeverGrow(fleet.spaces), range(24), Provenance(0, 0, 8, 0))
    assert not any(e.obs[:, 0].any() for e in episodes)
    assert {len(e) for e in episodes} == {3, 4, 5, 6}


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
