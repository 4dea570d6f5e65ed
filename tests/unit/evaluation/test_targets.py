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


def test_a_policy_that_grows_where_it_pays_meets_all() -> None:
    found = _found(made_up_rows())
    assert sum(t.goal != "" for t in found.values()) == 10
    assert all(t.met is (None if t.goal == "" else True) for t in found.values()), found


def test_two_points_over_the_best_single_schedule() -> None:
    ahead = _found(made_up_rows())["points over the best single schedule"]
    assert ahead.value is not None
    for gain, met in ((ahead.value - 2.1, True), (ahead.value - 1.9, False)):
        rows = _changed(BEST, lambda row, _, gain=gain: replace(row, gain=row.gain + gain))
        found = _found(rows)["points over the best single schedule"]
        assert found.value == pytest.approx(ahead.value - gain)
        assert found.met is met


def test_an_interval_that_includes_zero_misses_the_first_target() -> None:
    rows = made_up_rows(("a", "b", "c"))
    for policy in rows[POLICY][0.5]:
        policy["a"] = [replace(row, gain=row.gain + 200) for row in policy["a"]]
    found = _found(rows)["points over the best single schedule"]
    assert found.value is not None
    assert found.interval is not None
    assert found.value > 2
    assert found.interval.low < 0
    assert not found.met


def test_the_probability_of_improvement() -> None:
    found = _found(_changed(BEST, lambda row, _: replace(row, gain=row.gain + (100 if row.seed >= 3 else 0))))
    chance = found["probability of improvement over it"]
    assert chance.value == 0.5
    assert not chance.met


def test_an_interval_above_zero_over_the_chooser() -> None:
    found = _found(_changed(CHOOSER, lambda row, _: replace(row, gain=row.gain + 20)))["points over the chooser"]
    assert not found.met
    assert found.value is not None
    assert found.value < 0


def test_an_interval_above_zero_over_the_equal_compute_sweep() -> None:
    """A policy that is charged the FLOPs of a full sweep is compared with one."""
    assert _found(made_up_rows())["points over the equal-compute sweep"].met
    dear = _found(_changed(POLICY, lambda row, _: replace(row, training_flops=1e12, gain=row.gain - 1)))
    assert not dear["points over the equal-compute sweep"].met


def test_one_point_behind_the_full_sweep() -> None:
    for lost, met in ((0.5, True), (1.5, False)):
        found = _found(_changed(POLICY, lambda row, _, lost=lost: replace(row, gain=row.gain - lost)))
        assert found["points over the full sweep"].met is met


def test_a_third_of_the_flops_of_the_sweep() -> None:
    found = _found(_changed(POLICY, lambda row, _: replace(row, training_flops=0.4 * 85e6)))
    assert found["share of the sweep's FLOPs"].value == pytest.approx(0.4)
    assert not found["share of the sweep's FLOPs"].met
    assert found["share of the sweep's FLOPs"].measured == "0.40 [0.40, 0.40]"


def test_bare_where_the_sweep_keeps_the_bare_host() -> None:
    """In half of the episodes; two of twelve of these grow at every price, or at one."""
    assert _found(made_up_rows())["bare at the end where the sweep is"].value == 1.0
    always = _found(_changed(POLICY, lambda row, _: grown_row(0, 0.1) if row.seed == 5 else row))
    assert always["bare at the end where the sweep is"].value == pytest.approx(2 / 3)
    assert not always["bare at the end where the sweep is"].met
    once = _found(_changed(POLICY, lambda row, w: grown_row(0, 0.1) if row.seed == 5 and w == 1 else row))
    assert once["bare at the end where the sweep is"].value == pytest.approx(11 / 12)
    assert once["bare at the end where the sweep is"].met
    wider = _changed(NEVER, lambda row, _: replace(row, gain=row.gain - 99))  # the sweep keeps none
    assert _found(wider)["bare at the end where the sweep is"].measured == "no such episodes"


def test_growth_falls_with_the_price() -> None:
    """The correlation is that of scipy in every episode, 0 where growth is constant."""
    name = "correlation of growth and price where growing pays"
    assert _found(made_up_rows())[name].value == pytest.approx(-1)
    rng = np.random.default_rng(3)
    sizes = {(seed, w): float(rng.integers(1, 4)) for seed in range(6) for w in PRICES}
    rows = _changed(POLICY, lambda row, w: grown_row(row.gain, sizes[row.seed, w], seed=row.seed))
    wanted = []
    for seed in (0, 2, 4):  # where growing pays
        own = [sizes[seed, w] for w in PRICES]
        wanted.append(stats.spearmanr(own, PRICES).statistic if len(set(own)) > 1 else 0.0)
    found = _found(rows)[name]
    assert found.value == pytest.approx(np.mean(wanted))
    constant = _found(_changed(POLICY, lambda row, _: grown_row(row.gain, 1.0, seed=row.seed)))[name]
    assert (constant.value, constant.met) == (0.0, False)


def test_figures_without_a_goal_explain_those_above_them() -> None:
    """The policy ends with as many doublings at every price, and grows later at higher ones."""
    late = {w: 1.0 / (1 + k) for k, w in enumerate(PRICES)}
    rows = _changed(POLICY, lambda row, w: replace(row, final_params=400, rent=late[w], gain=row.gain))
    found = _found(rows)
    assert found["correlation of growth and price where growing pays"].value == 0.0
    rent = found["the same of the rent, which is lower if growth is late"]
    assert (rent.value, rent.met, rent.verdict) == (pytest.approx(-1.0), None, "")
    there = found["J over never growing there"]
    kept = [(seed, w) for seed in (1, 3, 5) for w in PRICES]
    assert there.value == pytest.approx(-np.mean([w * late[w] for _, w in kept]), abs=0.05)


def test_the_blind_policy_is_behind() -> None:
    found = _found(_changed(BLIND, lambda row, _: replace(row, gain=row.gain + 20)))["points over the blind policy"]
    assert not found.met


def test_no_episode_has_nan() -> None:
    found = _found(_changed(CHOOSER, lambda row, _: replace(row, finite=row.seed != 1)))["episodes with NaN"]
    assert (found.value, found.met, found.measured) == (8.0, False, "8.00")


def test_without_a_policy_there_are_no_targets() -> None:
    rows = {name: own for name, own in made_up_rows().items() if name not in (POLICY, BLIND)}
    assert _found(rows) == {}
