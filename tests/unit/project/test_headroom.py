"""The headroom gate: its figures on made-up cells, and that played cells are not played again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.rules.choices import LOOK
from benchmarks.gate import analysis
from benchmarks.gate.analysis import READER, best_of_cell, best_single, gate
from benchmarks.gate.cells import RULES, Cell, Played, is_played, play, width_classes

CONFIG = EnvConfig(horizon_epochs=6, inner_steps=2, rent_weight=1.0)
DOUBLE, QUAD = (RULES.index(f"fixed-column:{size}@{LOOK}") for size in ("double", "quad"))


def made_up(seed: int, small: bool, episodes: int = 8) -> Played:
    """In a small host the double column gains 20 points, in a large one nothing does; the loss tells which."""
    rng = np.random.default_rng(seed)
    gain, rent = 0.1 * rng.standard_normal((2, len(RULES), episodes))
    gain -= 5.0
    gain[0], rent[:] = 0.0, 1.0
    rent[0] = 0.0
    gain[DOUBLE] = 20.0 if small else -3.0
    seen = np.ones((episodes, READER.obs_size))
    READER.base(seen, "loss")[:, 0] = float(small)
    return Played(gain, rent, seen)


def test_the_gate_finds_what_a_chooser_can_win_and_takes_rent_at_every_price() -> None:
    found = {
        Cell(f"family{i}", (2 * small, 9), 8, CONFIG): made_up(2 * i + small, small)
        for i in range(4)
        for small in (False, True)
    }
    for price in (0.5, 4.0):
        one = gate(found, found, price)
        assert one.single == RULES[DOUBLE]
        assert one.single_points == pytest.approx((20.0 - 3.0) / 2 - price)
        assert one.best_points == pytest.approx((20.0 - price) / 2)
        assert one.chooser_points == pytest.approx(one.best_points)
        assert one.recovered / one.headroom == pytest.approx(1.0)
    assert RULES[best_single(found, 30.0)] == "never"


def test_the_best_of_a_cell_is_chosen_by_other_episodes() -> None:
    """Rules that differ by noise alone gain nothing over never growing, where the best in hindsight would."""
    rng = np.random.default_rng(1)
    gains = []
    for _ in range(300):
        gain = rng.standard_normal((len(RULES), 6))
        gains.append(best_of_cell(Played(gain, np.zeros_like(gain), np.zeros((6, 1))), 1.0))
        assert (gain - gain[0]).mean(1).max() >= 0
    assert np.mean(gains) < 0.15


def test_a_chooser_follows_only_rules_that_can_still_be_followed() -> None:
    names = [choice.name for choice in analysis.CHOICES]
    late = [f"fixed-column:{size}@{epoch}" for epoch in (-15, -10) for size in ("same", "double", "quad")]
    assert sorted(names) == sorted(
        [f"fixed-column:{size}@{LOOK}" for size in ("half", "same", "double", "quad")] + late
    )
    played = made_up(0, True)
    gain = np.zeros_like(played.gain)
    gain[RULES.index("fixed-column:quad@1")] = 50.0
    gain[QUAD] = 7.0
    told = np.array([gain[RULES.index(name)] for name in names])
    assert analysis.chosen(played._replace(gain=gain), lambda _: (told, 0 * told), 1.0) == pytest.approx(6.0)


def test_width_classes_cover_the_range_of_a_family() -> None:
    assert width_classes("spirals") == [(2, 4), (5, 8), (9, 16), (17, 32)]
    assert width_classes("signals") == [(2, 4), (5, 8), (9, 16)]


def test_a_cell_is_played_once(tmp_path: Path) -> None:
    cell = Cell("moons", (2, 4), 1, CONFIG)
    assert not is_played(cell, tmp_path)
    first = play(cell, tmp_path)
    assert is_played(cell, tmp_path)
    assert not is_played(Cell("moons", (2, 4), 2, CONFIG), tmp_path)
    for kept, own in zip(play(cell, tmp_path), first, strict=True):
        np.testing.assert_array_equal(kept, own)
    assert first.gain.shape == (len(RULES), 1)
    assert first.rent[0, 0] == 0.0 < first.rent[DOUBLE, 0]
