"""`Results`: all episodes of an evaluation as arrays, and the lines of its tables. Targets are in `targets.py`.

The sweeps, what people do instead of growing, follow from the episodes of hosts that were built wider.

Compute is free, or costs a share of the price of parameters; there are `Results` for each. J is in points over never
growing wherever players are compared. The figure of an episode is its mean over the prices; families count equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2
from typing import Any, NamedTuple

import numpy as np

from actors.slots.objective import Prices
from deploy.evaluation import statistics as st
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import BEST, BUILT, NEVER, POLICY, SCALES
from deploy.evaluation.suite import CONDITIONS
from deploy.report.statistics import Interval

EpisodeResults = Mapping[str, Mapping[Prices, Sequence[Mapping[str, Sequence[EpisodeResult]]]]]
"""`episodes[line][prices]` is a list over policies of results by family: the same seeds in the same order."""
SWEEP, EQUAL = "full sweep", "equal-compute sweep"
ROUNDING = 1e-9  # of shares of FLOPs
WIDTHS_OF_SWEEP = (NEVER, *(BUILT.format(k) for k in SCALES[1:]))


class Line(NamedTuple):
    """One row of the table; means over prices, families and episodes."""

    name: str
    policies: int
    over_never: Interval | None
    policy_over: Interval | None  # what the policy is ahead of it
    by_price: dict[float, float]  # J over never growing, by the price of parameters
    accuracy: float
    test_accuracy: float | None
    doublings: float  # D
    compute: float  # C
    flops: float  # of training, in those of never growing
    bare: float  # share of episodes at the end of which nothing was added


class FamilyLine(NamedTuple):
    """One family."""

    family: str
    over_never: dict[str, float]  # by line
    policy_over_best: Interval | None
    bare: float | None  # share of the policy's episodes at the end of which nothing was added


def with_sweeps(episodes: EpisodeResults) -> EpisodeResults:
    """Return `episodes` with the lines that follow from them: the sweep, and one of equal compute for each policy."""
    prices, families = list(episodes[NEVER]), list(next(iter(episodes[NEVER].values()))[0])

    def built(price: Prices, family: str) -> list[tuple[EpisodeResult, ...]]:
        return list(zip(*(episodes[name][price][0][family] for name in WIDTHS_OF_SWEEP), strict=True))

    def equal(policy: Mapping[str, Sequence[EpisodeResult]], price: Prices) -> dict[str, list[EpisodeResult]]:
        pairs = {f: zip(built(price, f), policy[f], strict=True) for f in families}
        return {f: [equal_compute(widths, price, e.flops) for widths, e in paired] for f, paired in pairs.items()}

    found = dict(episodes)
    found[SWEEP] = {w: [{f: [sweep(widths, w) for widths in built(w, f)] for f in families}] for w in prices}
    if POLICY in episodes:
        found[EQUAL] = {w: [equal(policy, w) for policy in episodes[POLICY][w]] for w in prices}
    return found


def sweep(built: Sequence[EpisodeResult], prices: Prices) -> EpisodeResult:
    """Train all widths for the whole horizon and keep the one with the highest J; of equals, the first. `built` are
    their results in one episode, narrowest first. The sweep costs the FLOPs of all of them."""
    compute = log2(sum(episode.flops for episode in built))
    return replace(max(built, key=lambda episode: episode.gain - prices.doubling * episode.doublings), compute=compute)


def equal_compute(built: Sequence[EpisodeResult], prices: Prices, flops: float) -> EpisodeResult:
    """Successive halving (Jamieson & Talwalkar, 2016) over the widths for `flops` training FLOPs, in those of the bare
    host.

    Three rungs train four, two and one widths; each has a third of the FLOPs, and what the rungs before it could not
    spend. Where a third does not pay one epoch of every width, the widest are left out. The widths of a rung continue
    for equally many epochs, at most to the horizon; the better half continues to the next.
    """
    horizon = len(built[0].curve) - 1
    costs = [episode.flops / horizon for episode in built]  # of an epoch
    left = list(range(len(built)))
    while len(left) > 1 and sum(costs[k] for k in left) > flops / 3:
        left.pop()
    epochs = [0] * len(built)
    spent = 0.0
    for rung in (1, 2, 3):
        most = max(0, horizon - epochs[left[0]])
        affordable = int((rung * flops / 3 - spent) / sum(costs[k] for k in left) + ROUNDING)
        more = min(most, max(affordable, 1 if rung == 1 else 0))  # the bare host trains for at least one epoch
        for k in left:
            epochs[k] += more
            spent += more * costs[k]
        left.sort(key=lambda k: prices.doubling * built[k].doublings + built[k].curve[0] - built[k].curve[epochs[k]])
        left = sorted(left[: max(1, 2 // rung)])
    chosen, trained = built[left[0]], epochs[left[0]]
    chosen = replace(chosen, compute=log2(max(spent, 1.0)))  # as for all, less than the bare host spends is no gain
    if trained >= chosen.epochs:
        return chosen
    accuracy, unread = chosen.curve[trained], float("nan")
    return replace(chosen, gain=accuracy - chosen.curve[0], accuracy=accuracy, test_accuracy=unread, epochs=trained)


def results_by_condition(episodes: EpisodeResults, resamples: int = st.RESAMPLES) -> dict[str, Results]:
    """Return the results of each group of prices in `CONDITIONS`."""
    whole = with_sweeps(episodes)
    return {
        name: Results({line: {w: by_price[w] for w in prices} for line, by_price in whole.items()}, resamples)
        for name, prices in CONDITIONS.items()
    }


@dataclass(frozen=True)
class Results:
    """The tables of an evaluation at a group of prices; see `EpisodeResults`. Use `results_by_condition`."""

    episodes: EpisodeResults
    resamples: int = st.RESAMPLES

    @property
    def prices(self) -> list[Prices]:
        return list(self.episodes[NEVER])

    @cached_property
    def families(self) -> list[str]:
        return list(self.episodes[NEVER][self.prices[0]][0])

    def values(self, line: str, name: str, price: Prices) -> st.Array:
        """Return `[P, F, S]` of an attribute of each episode, or of J (`objective`), at a price."""

        def number(episode: EpisodeResult) -> Any:
            return episode.objective(price) if name == "objective" else getattr(episode, name)

        policies = self.episodes[line][price]
        return np.array([[[number(episode) for episode in policy[f]] for f in self.families] for policy in policies])

    def mean_values(self, line: str, name: str) -> st.Array:
        """Return `[P, F, S]`, the mean over the prices."""
        return np.asarray(np.mean([self.values(line, name, w) for w in self.prices], axis=0))

    def against(self, line: str, other: str) -> st.Array:
        """Return the paired differences in J, mean over the prices, `[P, Q, F, S]`. A policy is compared with its own
        equal-compute sweep."""
        a, b = (self.mean_values(name, "objective") for name in (line, other))
        return st.differences(a, b, same_policies=EQUAL in (line, other) and len(a) == len(b))

    def interval(self, line: str, other: str) -> Interval:
        """Return the mean of `against` with its interval."""
        return st.interval(self.against(line, other), resamples=self.resamples)

    @cached_property
    def lines(self) -> list[Line]:
        return [self._line(name) for name in self.episodes]

    def _line(self, name: str) -> Line:
        by_price = {
            w.doubling: self.values(name, "objective", w) - self.values(NEVER, "objective", w) for w in self.prices
        }
        means = ("accuracy", "test_accuracy", "doublings", "compute", "flops", "bare")
        accuracy, test, *others = (float(self.mean_values(name, value).mean()) for value in means)
        return Line(
            name,
            len(self.episodes[name][self.prices[0]]),
            None if name == NEVER else self.interval(name, NEVER),
            self.interval(POLICY, name) if POLICY in self.episodes and name != POLICY else None,
            {p: float(over.mean()) for p, over in by_price.items()},
            accuracy,
            test if np.isfinite(test) else None,
            *others,
        )

    @cached_property
    def family_lines(self) -> list[FamilyLine]:
        over_never = {name: self.against(name, NEVER).mean((0, 1, 3)) for name in self.episodes if name != NEVER}
        played = POLICY in self.episodes
        over = self.against(POLICY, BEST) if played and BEST in self.episodes else None
        bare = self.mean_values(POLICY, "bare").mean((0, 2)) if played else None
        return [
            FamilyLine(
                family,
                {name: float(means[f]) for name, means in over_never.items()},
                None if over is None else st.interval(over[:, :, [f]], resamples=self.resamples),
                None if bare is None else float(bare[f]),
            )
            for f, family in enumerate(self.families)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the tables as plain data."""
        return {"prices": self.prices, "lines": plain(self.lines), "families": plain(self.family_lines)}


def plain(lines: Iterable[NamedTuple]) -> list[dict[str, Any]]:
    """Return lines of a table as plain data."""
    return [{k: v._asdict() if isinstance(v, Interval) else v for k, v in x._asdict().items()} for x in lines]
