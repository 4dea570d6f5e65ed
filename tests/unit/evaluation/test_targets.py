"""The targets, each on rows of which it is known whether they meet it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from deploy.evaluation.play import Row
from deploy.evaluation.players import BEST, BLIND, CHOOSER, NEVER, POLICY
from deploy.evaluation.results import Results, with_sweeps
from deploy.evaluation.suite import PRICES
from deploy.evaluation.targets import EvaluationTarget, targets
from tests.support.made_up_rows import Rows, grown_row, made_up_rows

BARE, CORRELATION = "bare at the end where the sweep is", "correlation of growth and price where growing pays"


def _found(rows: Rows) -> dict[str, EvaluationTarget]:
    return {t.name: t for t in targets(Results(with_sweeps(rows), resamples=200))}


def _changed(line: str, change: Callable[[Row, float], Row]) -> Rows:
    """The rows in which the policy meets all targets, with one line changed."""
    rows = made_up_rows()
    rows[line] = {
        w: [{f: [change(row, w) for row in own] for f, own in policy.items()} for policy in policies]
        for w, policies in rows[line].items()
    }
    return rows


def _better(gain: float) -> Callable[[Row, float], Row]:
    return lambda row, _: replace(row, gain=row.gain + gain)


def test_a_policy_that_grows_where_it_pays_meets_all() -> None:
    found = _found(made_up_rows())
    assert len(found) == 8
    assert all(t.met for t in found.values()), found
    assert found[BARE].value == 1.0
    assert found[CORRELATION].value == pytest.approx(-1)


@pytest.mark.parametrize(
    ("line", "gain", "name", "met"),
    [
        (POLICY, -0.5, "points over full sweep", True),
        (POLICY, -1.5, "points over full sweep", False),
        (CHOOSER, 20, "points over chooser", False),
        (BLIND, 20, "points over blind", False),
    ],
)
def test_points_over_other_players(line: str, gain: float, name: str, met: bool) -> None:
    assert _found(_changed(line, _better(gain)))[name].met is met


def test_two_points_over_the_best_single_schedule() -> None:
    name = "points over best single schedule"
    ahead = _found(made_up_rows())[name]
    assert ahead.value is not None
    for gain, met in ((ahead.value - 2.1, True), (ahead.value - 1.9, False)):
        found = _found(_changed(BEST, _better(gain)))[name]
        assert found.value == pytest.approx(ahead.value - gain)
        assert found.met is met


def test_an_interval_that_includes_zero_misses_the_first_target() -> None:
    rows = made_up_rows(("a", "b", "c"))
    for policy in rows[POLICY][0.5]:
        policy["a"] = [replace(row, gain=row.gain + 200) for row in policy["a"]]
    found = _found(rows)["points over best single schedule"]
    assert found.value is not None
    assert found.interval is not None
    assert found.value > 2
    assert found.interval.low < 0
    assert not found.met


def test_a_policy_that_is_charged_the_flops_of_a_full_sweep_is_compared_with_one() -> None:
    dear = _found(_changed(POLICY, lambda row, _: replace(row, training_flops=1e12, gain=row.gain - 1)))
    assert not dear["points over equal-compute sweep"].met


def test_a_third_of_the_flops_of_the_sweep() -> None:
    found = _found(_changed(POLICY, lambda row, _: replace(row, training_flops=0.4 * 85e6)))[
        "share of the sweep's FLOPs"
    ]
    assert (found.value, found.met, found.measured) == (pytest.approx(0.4), False, "0.40 [0.40, 0.40]")


def test_bare_where_the_sweep_keeps_the_bare_host() -> None:
    """In half of the episodes; two of twelve of these grow at every price, or at one."""
    always = _found(_changed(POLICY, lambda row, _: grown_row(0, 0.1) if row.seed == 5 else row))[BARE]
    assert (always.value, always.met) == (pytest.approx(2 / 3), False)
    once = _found(_changed(POLICY, lambda row, w: grown_row(0, 0.1) if row.seed == 5 and w == 1 else row))[BARE]
    assert (once.value, once.met) == (pytest.approx(11 / 12), True)
    wider = _changed(NEVER, _better(-99))  # the sweep keeps none
    assert _found(wider)[BARE].measured == "no such episodes"


def test_growth_falls_with_the_price() -> None:
    """The correlation is that of scipy in every episode, 0 where growth is constant."""
    rng = np.random.default_rng(3)
    sizes = {(seed, w): float(rng.integers(1, 4)) for seed in range(6) for w in PRICES}
    rows = _changed(POLICY, lambda row, w: grown_row(row.gain, sizes[row.seed, w], seed=row.seed))
    wanted = []
    for seed in (0, 2, 4):  # where growing pays
        own = [sizes[seed, w] for w in PRICES]
        wanted.append(stats.spearmanr(own, PRICES).statistic if len(set(own)) > 1 else 0.0)
    assert _found(rows)[CORRELATION].value == pytest.approx(np.mean(wanted))
    constant = _found(_changed(POLICY, lambda row, _: grown_row(row.gain, 1.0, seed=row.seed)))[CORRELATION]
    assert (constant.value, constant.met) == (0.0, False)


def test_without_a_policy_there_are_no_targets() -> None:
    rows = {name: own for name, own in made_up_rows().items() if name not in (POLICY, BLIND)}
    assert _found(rows) == {}
