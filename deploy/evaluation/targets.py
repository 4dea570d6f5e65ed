"""The targets of the evaluation, fixed before any policy was measured (docs/evaluation.md)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from deploy.evaluation import statistics as st
from deploy.evaluation.players import BEST, BLIND, CHOOSER, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, Array, Results, bare, doublings
from deploy.report.statistics import Interval

POINTS_OVER = {BEST: 2.0, SWEEP: -1.0, CHOOSER: 0.0, EQUAL: 0.0, BLIND: 0.0}
"""Least points of J over other lines. Over all but the sweep the interval must be above 0 as well."""
FLOPS_SHARE, BARE_SHARE, CORRELATION = 1 / 3, 0.9, -0.5


class EvaluationTarget(NamedTuple):
    """A figure with its goal. `interval` is None where nothing varies, `value` where no episode counts."""

    name: str
    value: float | None
    interval: Interval | None
    goal: str
    met: bool

    @property
    def measured(self) -> str:
        """The value and its interval as text."""
        if self.value is None:
            return "no such episodes"
        return f"{self.value:.2f}" + (f" [{self.interval.low:.2f}, {self.interval.high:.2f}]" if self.interval else "")


def targets(results: Results) -> list[EvaluationTarget]:
    """Return all targets for which the players were played."""
    if POLICY not in results.rows:
        return []
    found = [_points_over(results, other, least) for other, least in POINTS_OVER.items() if other in results.rows]
    cost = results.interval(results.flops_ratio(POLICY, SWEEP))
    return [
        *found,
        EvaluationTarget("share of the sweep's FLOPs", cost.mean, cost, "at most 1/3", cost.mean <= FLOPS_SHARE),
        bare_where_the_sweep_is(results),
        growth_falls_with_the_price(results),
    ]


def _points_over(results: Results, other: str, least: float) -> EvaluationTarget:
    found, above = results.interval(results.against(POLICY, other)), other != SWEEP
    goals = [f"at least {least:g}"] * (least != 0) + ["interval above 0"] * above
    met = found.mean >= least and (found.low > 0 or not above)
    return EvaluationTarget(f"points over {other}", found.mean, found, ", ".join(goals), met)


def bare_where_the_sweep_is(results: Results) -> EvaluationTarget:
    """The share of episodes that end bare, of those where the sweep keeps the bare host, at any price."""
    kept = [results.values(SWEEP, bare, w) for w in results.prices]
    both = [results.values(POLICY, bare, w) * k for w, k in zip(results.prices, kept, strict=True)]
    value, found = _share(results, np.mean(both, axis=0), np.mean(kept, axis=0))
    name, met = "bare at the end where the sweep is", value is not None and value >= BARE_SHARE
    return EvaluationTarget(name, value, found, f"at least {BARE_SHARE:g}", met)


def growth_falls_with_the_price(results: Results) -> EvaluationTarget:
    """Spearman's rank correlation of added doublings and price in an episode, averaged over the episodes where the
    sweep keeps a wider host at the lowest price. It is 0 where a policy adds as much at every price."""
    pays = 1.0 - results.values(SWEEP, bare, min(results.prices))  # [1, F, S]
    grown = np.stack([results.values(POLICY, doublings, w) for w in results.prices])  # [W, P, F, S]
    value, found = _share(results, _correlation(grown, np.array(results.prices)) * pays, pays)
    name, met = "correlation of growth and price where growing pays", value is not None and value <= CORRELATION
    return EvaluationTarget(name, value, found, f"at most {CORRELATION:g}", met)


def _correlation(x: Array, y: Array) -> Array:
    """Spearman's correlation of `x [W, ...]` with `y [W]`, 0 where `x` is constant."""
    a, b = stats.rankdata(x, axis=0), stats.rankdata(y)
    a, b = a - a.mean(0), (b - b.mean()).reshape(-1, *[1] * (x.ndim - 1))
    norm = np.sqrt((a**2).sum(0) * (b**2).sum())
    return np.asarray(np.divide((a * b).sum(0), norm, out=np.zeros_like(norm), where=norm > 0))


def _share(results: Results, part: Array, whole: Array) -> tuple[float | None, Interval | None]:
    """Return the mean of `part [P, F, S]` over that of `whole [1, F, S]`, and its interval within -1 and 1."""
    if whole.mean() == 0:
        return None, None
    found = st.share(part[:, None], whole[None], resamples=results.resamples)
    value = float(part.mean() / whole.mean())
    return value, found and Interval(value, max(-1.0, found.low), min(1.0, found.high))
