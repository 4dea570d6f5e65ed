"""Confidence intervals: coverage under simulated null hypotheses, and agreement with the t interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from deploy.report.statistics import mean_interval, paired_interval, stratified_mean, stratified_moments


def test_coverage_on_simulated_skewed_nulls() -> None:
    rng = np.random.default_rng(11)
    trials, n = 600, 48
    covered = 0
    for trial in range(trials):
        tasks = rng.normal(0, 30, n)  # shared by both sides: pairing has to remove it
        noise = rng.exponential(5.0, n) - 5.0
        interval = paired_interval((tasks + noise).tolist(), tasks.tolist(), seed=trial, resamples=400)
        covered += interval.low <= 0.0 <= interval.high
    assert 0.90 <= covered / trials <= 0.97


def test_agrees_with_the_t_interval_on_normal_differences() -> None:
    x = np.random.default_rng(3).normal(2.0, 4.0, 400)
    low, high = stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x))
    interval = mean_interval(x.tolist())
    assert interval.low == pytest.approx(low, abs=0.05)
    assert interval.high == pytest.approx(high, abs=0.05)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [([1.0], [1.0], "at least two"), ([1.0, 2.0], [1.0], "cannot be paired"), ([1.0, np.nan], [0.0, 0.0], "finite")],
)
def test_invalid_comparisons_are_rejected(a: list[float], b: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        paired_interval(a, b)


def test_a_stratified_mean_does_not_depend_on_the_mix_of_strata() -> None:
    """Ten easy tasks and one hard one, or one easy and ten hard: the same mean; a plain mean would be far off."""
    easy, hard = [80.0, 82.0], [10.0, 12.0]
    few = stratified_mean(easy + hard * 5, ["easy"] * 2 + ["hard"] * 10)
    many = stratified_mean(easy * 5 + hard, ["easy"] * 10 + ["hard"] * 2)
    assert few.mean == pytest.approx(46.0)
    assert many.mean == pytest.approx(46.0)
    assert few.low < few.mean < few.high


def test_moments_give_the_mean_of_each_column() -> None:
    rng = np.random.default_rng(3)
    values, tasks = rng.normal(50, 9, (40, 2)), rng.integers(0, 3, 40)
    moments = [np.stack([(values[tasks == t] ** k).sum(0) for t in range(4)]) for k in range(3)]  # task 3 has none
    found = stratified_moments(*moments)
    for column in range(2):
        assert found[:, column] == pytest.approx(tuple(stratified_mean(values[:, column], tasks)))
    assert np.isnan(stratified_moments(*np.zeros((3, 2, 1)))).all()
