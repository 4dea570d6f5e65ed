"""The targets, each on rows of which it is known whether they meet it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from actors.slots.objective import Prices
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import BEST, BLIND, FEEDFORWARD, NEVER, NO_PRUNE, POLICY
from deploy.evaluation.results import results_by_condition
from deploy.evaluation.suite import ALL_PRICES, FREE, PRICED, PRICES
from deploy.evaluation.targets import Target, targets
from tests.support.made_up_rows import Rows, grown_row, made_up_rows

Change = Callable[[EpisodeResult, Prices], EpisodeResult]
BARE, CORRELATION = "bare at the end where the sweep is", "correlation of growth and price where growing pays"
OVER_BEST, OVER_SWEEP, OVER_EQUAL = (f"points over {o}" for o in (BEST, "full sweep", "equal-compute sweep"))


def _found(rows: Rows) -> dict[tuple[str, str], Target]:
    return {(t.name, t.condition): t for t in targets(results_by_condition(rows, resamples=200))}


def _changed(line: str, change: Change) -> Rows:
    """The rows in which the policy meets all targets, with one line changed."""
    rows = made_up_rows()
    rows[line] = {
        w: [{f: [change(row, w) for row in own] for f, own in policy.items()} for policy in policies]
        for w, policies in rows[line].items()
    }
    return rows


def _better(gain: float) -> Change:
    return lambda row, _: replace(row, gain=row.gain + gain)


def test_a_policy_that_grows_where_it_pays_meets_all() -> None:
    found = _found(made_up_rows())
    assert len(found) == 2 * 8 + 1
    assert all(t.met is not False for t in found.values())
    assert [key for key, t in found.items() if t.met is None] == [(f"points over {NO_PRUNE}", FREE)]
    assert {found[BARE, at].value for at in (FREE, PRICED)} == {1.0}
    assert found[CORRELATION, FREE].value == pytest.approx(-1)


def _dear(row: EpisodeResult, prices: Prices) -> EpisodeResult:
    return replace(row, compute=20.0, gain=row.gain - 1)


@pytest.mark.parametrize(
    ("line", "change", "name", "met"),
    [
        (POLICY, _better(-0.1), OVER_SWEEP, {FREE: True, PRICED: True}),
        (POLICY, _better(-1.0), OVER_SWEEP, {FREE: False, PRICED: True}),
        (POLICY, _better(-3.0), OVER_SWEEP, {FREE: False, PRICED: False}),
        (POLICY, _dear, OVER_SWEEP, {PRICED: False}),
        (POLICY, _dear, OVER_EQUAL, {FREE: False}),
        (BLIND, _better(20), "points over blind", {FREE: False, PRICED: False}),
        (FEEDFORWARD, _better(20), "points over feedforward", {FREE: False, PRICED: False}),
        (NO_PRUNE, _better(20), "points over without prune", {FREE: None, PRICED: False}),
    ],
)
def test_points_over_other_players(line: str, change: Change, name: str, met: dict[str, bool | None]) -> None:
    found = _found(_changed(line, change))
    assert {at: found[name, at].met for at in met} == met


@pytest.mark.parametrize(("at", "least"), [(FREE, 0.0), (PRICED, 1.0)])
def test_points_over_the_best_single_rule(at: str, least: float) -> None:
    for points, met in ((least - 0.1, False), (least + 0.1, True)):
        # Equally many points in every episode, so that the interval is narrow.
        rows, behind = made_up_rows(), _better(-points)
        rows[BEST] = {
            w: [{f: [behind(row, w) for row in own] for f, own in rows[POLICY][w][0].items()}] for w in ALL_PRICES
        }
        found = _found(rows)[OVER_BEST, at]
        assert found.value == pytest.approx(points, abs=0.01)
        assert found.met is met


def test_an_interval_that_includes_zero_misses_the_first_target() -> None:
    rows = made_up_rows(("a", "b", "c"))
    for policy in rows[POLICY][ALL_PRICES[0]]:
        policy["a"] = [replace(row, gain=row.gain + 200) for row in policy["a"]]
    found = _found(rows)[OVER_BEST, FREE]
    assert (found.value > 2, found.interval.low < 0, found.met) == (True, True, False)


def test_a_fifth_of_the_flops_of_the_sweep() -> None:
    name = "share of the sweep's FLOPs"
    found = _found(_changed(POLICY, lambda row, _: replace(row, compute=float(np.log2(0.4 * 85)))))
    assert (found[name, FREE].value, found[name, FREE].met) == (pytest.approx(0.4), False)
    assert found[name, FREE].measured == "0.40 [0.40, 0.40]"
    assert (name, PRICED) not in found


def test_bare_where_the_sweep_keeps_the_bare_host() -> None:
    """In half of the episodes; two of twelve of these grow at every price, or at one."""
    always = _found(_changed(POLICY, lambda row, _: grown_row(0, 0.1) if row.seed == 5 else row))
    once = _found(_changed(POLICY, lambda row, w: grown_row(0, 0.1) if row.seed == 5 and w.doubling == 1 else row))
    for at in (FREE, PRICED):
        assert (always[BARE, at].value, always[BARE, at].met) == (pytest.approx(2 / 3), False)
        assert (once[BARE, at].value, once[BARE, at].met) == (pytest.approx(11 / 12), True)
    wider = _changed(NEVER, _better(-99))  # the sweep keeps none
    assert _found(wider)[BARE, FREE].measured == "no such episodes"


def test_growth_falls_with_the_price() -> None:
    """The correlation is that of scipy in every episode, 0 where growth is constant."""
    rng = np.random.default_rng(3)
    sizes = {(seed, p): float(rng.integers(1, 4)) for seed in range(6) for p in PRICES}
    rows = _changed(POLICY, lambda row, w: grown_row(row.gain, sizes[row.seed, w.doubling], seed=row.seed))
    wanted = []
    for seed in (0, 2, 4):  # where growing pays
        own = [sizes[seed, p] for p in PRICES]
        wanted.append(stats.spearmanr(own, PRICES).statistic if len(set(own)) > 1 else 0.0)
    assert _found(rows)[CORRELATION, PRICED].value == pytest.approx(np.mean(wanted))
    constant = _found(_changed(POLICY, lambda row, _: grown_row(row.gain, 1.0, seed=row.seed)))[CORRELATION, FREE]
    assert (constant.value, constant.met) == (0.0, False)


def test_without_a_policy_there_are_no_targets() -> None:
    rows = {name: own for name, own in made_up_rows().items() if name not in (POLICY, BLIND)}
    assert _found(rows) == {}
