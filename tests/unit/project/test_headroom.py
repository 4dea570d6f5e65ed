"""The headroom gate: its figures on made-up episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.headroom import RULES, Played, gates, over_never
from tests.support.made_up_rows import made_up_row

TRIAL = RULES.index("trial:double@1-2")


def made_up(pays: bool, noise: float = 0.0, compute: float = 2.0, episodes: int = 64) -> Played:
    """A trial of the double column gains 20 points or nothing, at one doubling of the model and two of compute."""
    luck = noise * np.random.default_rng(0).standard_normal((len(RULES), episodes, 2))
    played = [[made_up_row(gain, test_accuracy=test) for gain, test in of_rule] for of_rule in luck.tolist()]
    paid = 20.0 * pays
    played[TRIAL] = [
        replace(r, gain=r.gain + paid, test_accuracy=r.test_accuracy + paid, doublings=float(pays), compute=compute)
        for r in played[TRIAL]
    ]
    return played


def test_the_gate_charges_both_prices_and_finds_what_looking_could_win() -> None:
    families = [made_up(pays) for pays in (True, False)]
    for share in (0.0, 0.25):
        for found in gates(dict.fromkeys((1.0, 4.0), families), share):
            p, c = found.prices
            assert c == share * p
            assert found.single == RULES[TRIAL]
            assert found.single_points == pytest.approx((20.0 - p) / 2 - 2 * c)
            assert found.hindsight_points == pytest.approx((20.0 - p - 2 * c) / 2)
    dear = gates({30.0: families}, 1.0)[0]
    assert (dear.single, dear.single_points, dear.hindsight_points) == ("never", 0.0, 0.0)


def test_luck_on_the_rows_of_the_choice_is_not_counted() -> None:
    """Rules that differ by noise alone gain nothing over never growing, where the best in hindsight would."""
    lucky = made_up(False, noise=3.0, compute=0.0, episodes=2000)
    found = gates({1.0: [lucky]}, 0.25)[0]
    assert abs(found.hindsight_points) < 0.4
    assert over_never(lucky, found.prices).max(0).mean() > 5.0
