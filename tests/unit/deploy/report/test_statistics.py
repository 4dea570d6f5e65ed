"""Confidence intervals: coverage under simulated null hypotheses, and agreement with the t interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from deploy.report.statistics import mean_interval, stratified_mean


def test_coverage_on_simulated_skewed_nulls() -> None:
    rng = np.random.default_rng(11)
    found = [mean_interval(rng.exponential(5.0, 48) - 5.0, resamples=400) for _ in range(600)]
    assert 0.90 <= np.mean([interval.low <= 0.0 <= interval.high for interval in found]) <= 0.97


def test_agrees_with_the_t_interval_on_normal_differences() -> None:
    x = np.random.default_rng(3).normal(2.0, 4.0, 400)
    low, high = stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x))
    interval = mean_interval(x.tolist())
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.05)


@pytest.mark.parametrize(("values", "reason"), [([1.0], "at least two"), ([1.0, np.nan], "finite")])
def test_an_interval_needs_two_finite_values(values: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        mean_interval(values)


def test_a_stratified_mean_does_not_depend_on_the_mix_of_strata() -> None:
    """Ten easy tasks and one hard one, or one easy and ten hard: the same mean; a plain mean would be far off."""
    for easy, hard in ((1, 5), (5, 1)):
        strata = [np.array([80.0, 82.0] * easy), np.array([10.0, 12.0] * hard), np.zeros(0)]
        mean, low, high = stratified_mean(*[np.array([(x**k).sum() for x in strata]) for k in range(3)])
        error = 1.96 * np.sqrt(sum(x.var(ddof=1) / len(x) for x in strata[:2])) / 2
        assert (low, mean, high) == pytest.approx((46.0 - error, 46.0, 46.0 + error))
    assert np.isnan(stratified_mean(*np.zeros((3, 2, 1)))).all()
