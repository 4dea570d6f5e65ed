"""The headroom gate: its figures on made-up cells, and that it plays what the evaluation plays."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.rules.names import rule_policy
from benchmarks import headroom
from benchmarks.headroom import RULES, Cell, Played, gates, play_cell, read_cell
from deploy.evaluation.play import play
from deploy.evaluation.suite import first_seed

DOUBLE, QUAD = RULES.index("trial:double@1-2"), RULES.index("trial:quad@1-2")


def made_up(pays: bool, noise: float = 0.0, episodes: int = 64) -> Played:
    """A trial of the double column gains 20 points or nothing, at one doubling of the model and two of compute."""
    rng = np.random.default_rng(0)
    shape = (len(RULES), episodes)
    gain = noise * rng.standard_normal(shape)
    test = noise * rng.standard_normal(shape)
    doublings, compute = np.zeros(shape), np.zeros(shape)
    gain[DOUBLE] += 20.0 * pays
    test[DOUBLE] += 20.0 * pays
    doublings[DOUBLE], compute[DOUBLE] = float(pays), 2.0
    return Played(gain, test, doublings, compute)


def test_the_gate_charges_both_prices_and_finds_what_looking_could_win() -> None:
    families = [made_up(pays) for pays in (True, False)]
    for share in (0.0, 0.25):
        for found in gates(dict.fromkeys((1.0, 4.0), families), share):
            p, c = found.prices
            assert c == share * p
            assert found.single == RULES[DOUBLE]
            assert found.single_points == pytest.approx((20.0 - p) / 2 - 2 * c)
            assert found.hindsight_points == pytest.approx((20.0 - p - 2 * c) / 2)
    dear = gates({30.0: families}, 1.0)[0]
    assert (dear.single, dear.single_points, dear.hindsight_points) == ("never", 0.0, 0.0)


def test_luck_on_the_rows_of_the_choice_is_not_counted() -> None:
    """Rules that differ by noise alone gain nothing over never growing, where the best in hindsight would."""
    lucky = made_up(False, noise=3.0, episodes=2000)
    lucky.compute[:] = 0.0
    found = gates({1.0: [lucky]}, 0.25)[0]
    assert abs(found.hindsight_points) < 0.4
    assert lucky.gain.max(0).mean() > 5.0


def test_a_cell_holds_what_the_evaluation_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "RULES", RULES[:2])
    config = EnvConfig(tasks=("moons",), horizon_epochs=6, inner_steps=2, points_per_compute_doubling=0.0)
    cell = Cell("moons", 2.0, 2, config)
    play_cell(cell, tmp_path)
    first = first_seed("moons")
    own = EnvConfig(
        tasks=("moons",), horizon_epochs=6, inner_steps=2, points_per_doubling=2.0, points_per_compute_doubling=0.0
    )
    rows = play(partial(rule_policy, RULES[1]), own, headroom.RUN_SEED, range(first, first + 2))
    kept = read_cell(cell, tmp_path)
    np.testing.assert_array_equal(kept.gain[1], [row.gain for row in rows])
    np.testing.assert_array_equal(kept.compute[1], [row.compute for row in rows])
    assert kept.compute[1].min() > 0.0 == kept.compute[0].max()
    assert not Cell("moons", 2.0, 3, config).file(tmp_path).is_file()
