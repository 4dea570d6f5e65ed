"""The targets of the evaluation, fixed before any policy was measured (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

import numpy as np
from scipy import stats

from deploy.evaluation import statistics as st
from deploy.evaluation.players import BEST, BLIND, FEEDFORWARD, NO_PRUNE, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, Results
from deploy.evaluation.statistics import Array
from deploy.evaluation.suite import FREE, PRICED
from deploy.report.statistics import Interval

POINTS_OVER: dict[str, dict[str, float | None]] = {
    FREE: {BEST: 0.0, SWEEP: -0.5, EQUAL: 0.0, NO_PRUNE: None, FEEDFORWARD: 0.0, BLIND: 0.0},
    PRICED: {BEST: 1.0, SWEEP: 1.5, EQUAL: 0.0, NO_PRUNE: 0.0, FEEDFORWARD: 0.0, BLIND: 0.0},
}
"""Least points of J over other lines; None is reported only. Unless they are negative, the interval must be above 0 as
well."""
FLOPS_SHARE, BARE_SHARE, CORRELATION = 0.2, 0.9, -0.6


class Target(NamedTuple):
    """A figure with its goal. `interval` is None where nothing varies, `value` where nothing counts, `met` where there
    is no goal."""

    name: str
    condition: str
    value: float | None
    interval: Interval | None
    goal: str
    met: bool | None
    trainings: int | None = None  # in the suite `practical`: that it was measured on
    wanted: int | None = None

    @property
    def measured(self) -> str:
        """The value and its interval as text."""
        if self.value is None:
            return "no such episodes" if self.trainings is None else "not yet"
        return f"{self.value:.2f}" + (f" [{self.interval.low:.2f}, {self.interval.high:.2f}]" if self.interval else "")

    @property
    def verdict(self) -> str:
        """Say whether it is met, by what was played so far."""
        if self.met is None:
            return ""
        return ("met" if self.met else "missed") + ("" if self.trainings == self.wanted else " so far")


def targets(results: Mapping[str, Results]) -> Iterator[Target]:
    """Yield all targets for which the players were played."""
    for name, part in results.items():
        if POLICY not in part.episodes:
            continue
        for other, least in POINTS_OVER[name].items():
            if other in part.episodes:
                yield _points_over(part, name, other, least)
        if name == FREE:
            yield _share_of_flops(part, name)
        yield _bare_where_the_sweep_is(part, name)
        yield _growth_falls_with_the_price(part, name)


def _points_over(results: Results, condition: str, other: str, least: float | None) -> Target:
    name, found = f"points over {other}", results.interval(POLICY, other)
    if least is None:
        return Target(name, condition, found.mean, found, "reported", None)
    goals = [f"at least {least:g}"] * (least != 0) + ["interval above 0"] * (least >= 0)
    met = found.mean >= least and (found.low > 0 or least < 0)
    return Target(name, condition, found.mean, found, ", ".join(goals), met)


def _share_of_flops(results: Results, condition: str) -> Target:
    spent, whole = (results.mean_values(line, "flops") for line in (POLICY, SWEEP))
    return _share(results, "share of the sweep's FLOPs", condition, spent, whole, at_most=FLOPS_SHARE)


def _bare_where_the_sweep_is(results: Results, condition: str) -> Target:
    """The share of episodes that end bare, of those where the sweep keeps the bare host, at any price."""
    kept = [results.values(SWEEP, "bare", w) for w in results.prices]
    both = [results.values(POLICY, "bare", w) * k for w, k in zip(results.prices, kept, strict=True)]
    name = "bare at the end where the sweep is"
    return _share(results, name, condition, np.mean(both, axis=0), np.mean(kept, axis=0), at_least=BARE_SHARE)


def _growth_falls_with_the_price(results: Results, condition: str) -> Target:
    """Spearman's rank correlation of doublings and price, where the sweep keeps a wider host at the lowest price."""
    pays = 1.0 - results.values(SWEEP, "bare", min(results.prices))  # [1, F, S]
    grown = np.stack([results.values(POLICY, "doublings", w) for w in results.prices])  # [W, P, F, S]
    prices = np.array([w.doubling for w in results.prices])
    name = "correlation of growth and price where growing pays"
    return _share(results, name, condition, _correlation(grown, prices) * pays, pays, at_most=CORRELATION)


def _correlation(x: Array, y: Array) -> Array:
    """Spearman's correlation of `x [W, ...]` with `y [W]`, 0 where `x` is constant."""
    a, b = stats.rankdata(x, axis=0), stats.rankdata(y)
    a, b = a - a.mean(0), (b - b.mean()).reshape(-1, *[1] * (x.ndim - 1))
    norm = np.sqrt((a**2).sum(0) * (b**2).sum())
    return np.asarray(np.divide((a * b).sum(0), norm, out=np.zeros_like(norm), where=norm > 0))


def _share(
    results: Results, name: str, condition: str, part: Array, whole: Array, at_least: float = -inf, at_most: float = inf
) -> Target:
    """A target for the mean of `part [P, F, S]` over that of `whole [1, F, S]`, with its interval within -1 and 1."""
    goal = f"at least {at_least:g}" if at_most == inf else f"at most {at_most:g}"
    if whole.mean() == 0:
        return Target(name, condition, None, None, goal, False)
    found = st.share(part[:, None], whole[None], resamples=results.resamples)
    value = float(part.mean() / whole.mean())
    found = found and Interval(value, max(-1.0, found.low), min(1.0, found.high))
    return Target(name, condition, value, found, goal, at_least <= value <= at_most)
