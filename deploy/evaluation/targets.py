"""The targets of the evaluation, fixed before any policy was measured (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from deploy.evaluation import statistics as st
from deploy.evaluation.play import Row
from deploy.evaluation.players import BEST, BLIND, CHOOSER, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, Array, Results, doublings
from deploy.report.statistics import Interval


class EvaluationTarget(NamedTuple):
    """A figure with its goal, or without one if it explains the figure above it. `interval` is None where nothing
    varies."""

    name: str
    value: float | None
    interval: Interval | None
    goal: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        return "" if self.met is None else "met" if self.met else "missed"

    @property
    def measured(self) -> str:
        """The value and its interval as text."""
        if self.value is None:
            return "no such episodes"
        if self.interval is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.interval.low:.2f}, {self.interval.high:.2f}]"


def targets(results: Results) -> list[EvaluationTarget]:
    """Return all targets for which the players were played."""
    if POLICY not in results.rows:
        return []
    found = []
    if BEST in results.rows:
        over = results.against(POLICY, BEST)
        ahead, chance = results.interval(over), results.chance(over)
        met = ahead.mean >= 2.0 and ahead.low > 0
        found += [
            EvaluationTarget("points over the best single schedule", ahead.mean, ahead, "2, interval above 0", met),
            EvaluationTarget(
                "probability of improvement over it", chance.mean, chance, "at least 0.65", chance.mean >= 0.65
            ),
        ]
    for other in (CHOOSER, EQUAL):
        if other in results.rows:
            found.append(_above_zero(results, other, f"points over the {other}"))
    if SWEEP in results.rows:
        behind = results.interval(results.against(POLICY, SWEEP))
        cost = results.interval(results.flops_ratio(POLICY, SWEEP))
        found += [
            EvaluationTarget("points over the full sweep", behind.mean, behind, "at least -1", behind.mean >= -1.0),
            EvaluationTarget("share of the sweep's FLOPs", cost.mean, cost, "at most 1/3", cost.mean <= 1 / 3),
            bare_where_the_sweep_is(results),
            gain_where_the_sweep_is_bare(results),
            growth_falls_with_the_price(results),
            rent_falls_with_the_price(results),
        ]
    if BLIND in results.rows:
        found.append(_above_zero(results, BLIND, "points over the blind policy"))
    rows = [r for line in results.rows.values() for at in line.values() for p in at for own in p.values() for r in own]
    broken = float(sum(not row.finite for row in rows))
    return [*found, EvaluationTarget("episodes with NaN", broken, None, "0", broken == 0)]


def bare_where_the_sweep_is(results: Results) -> EvaluationTarget:
    """The share of episodes that end bare, of those where the sweep keeps the bare host, at any price."""
    kept = [results.values(SWEEP, lambda row, _: row.bare, w) for w in results.prices]
    bare = [results.values(POLICY, lambda row, _: row.bare, w) for w in results.prices]
    both = np.mean([b * k for b, k in zip(bare, kept, strict=True)], axis=0)
    return _share(results, "bare at the end where the sweep is", both, np.mean(kept, axis=0), "at least 0.9", 0.9)


def gain_where_the_sweep_is_bare(results: Results) -> EvaluationTarget:
    """J over never growing in these episodes: what growing costs there, or gains, since a sweep cannot grow late."""
    kept = [results.values(SWEEP, lambda row, _: row.bare, w) for w in results.prices]
    over = [results.over_never(POLICY, w) * k for w, k in zip(results.prices, kept, strict=True)]
    return _mean_over(results, "J over never growing there", np.mean(over, axis=0), np.mean(kept, axis=0))


def growth_falls_with_the_price(results: Results) -> EvaluationTarget:
    """Spearman's rank correlation of added doublings and price in an episode, averaged over the episodes where the
    sweep keeps a wider host at the lowest price. It is 0 where a policy adds as much at every price."""
    name = "correlation of growth and price where growing pays"
    return _share(results, name, *_falls_with_the_price(results, doublings), "at most -0.5", -0.5)


def rent_falls_with_the_price(results: Results) -> EvaluationTarget:
    """The same correlation of the rent: the doublings averaged over the epochs, which also fall if growth is later."""
    part, whole = _falls_with_the_price(results, lambda row, _: row.rent)
    return _mean_over(results, "the same of the rent, which is lower if growth is late", part, whole)


def _falls_with_the_price(results: Results, size: Callable[[Row, float], float]) -> tuple[Array, Array]:
    pays = 1.0 - results.values(SWEEP, lambda row, _: row.bare, min(results.prices))  # [1, F, S]
    grown = np.stack([results.values(POLICY, size, w) for w in results.prices])  # [W, P, F, S]
    return _correlation(grown, np.array(results.prices)) * pays, pays


def _correlation(x: Array, y: Array) -> Array:
    """Spearman's correlation of `x [W, ...]` with `y [W]`, 0 where `x` is constant."""
    a, b = stats.rankdata(x, axis=0), stats.rankdata(y)
    a, b = a - a.mean(0), (b - b.mean()).reshape(-1, *[1] * (x.ndim - 1))
    norm = np.sqrt((a**2).sum(0) * (b**2).sum())
    return np.asarray(np.divide((a * b).sum(0), norm, out=np.zeros_like(norm), where=norm > 0))


def _share(results: Results, name: str, part: Array, whole: Array, goal: str, least: float) -> EvaluationTarget:
    """The mean of `part [P, F, S]` over that of `whole [1, F, S]`; a negative goal is an upper bound."""
    value, found = _mean_over(results, name, part, whole)[1:3]
    if value is None:
        return EvaluationTarget(name, None, None, goal, False)
    if found is not None:
        found = Interval(value, max(-1.0 if least < 0 else 0.0, found.low), min(1.0, found.high))
    return EvaluationTarget(name, value, found, goal, value <= least if least < 0 else value >= least)


def _mean_over(results: Results, name: str, part: Array, whole: Array) -> EvaluationTarget:
    """The mean of `part [P, F, S]` over that of `whole [1, F, S]`, without a goal."""
    if whole.mean() == 0:
        return EvaluationTarget(name, None, None)
    value = float(part.mean() / whole.mean())
    found = st.share(part[:, None], whole[None], resamples=results.resamples)
    return EvaluationTarget(name, value, found and Interval(value, found.low, found.high))


def _above_zero(results: Results, other: str, name: str) -> EvaluationTarget:
    found = results.interval(results.against(POLICY, other))
    return EvaluationTarget(name, found.mean, found, "interval above 0", found.low > 0)
