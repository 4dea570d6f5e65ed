"""`Results`: all episodes of an evaluation as arrays, and the lines of its tables. Targets are in `targets.py`.

J is in points over never growing wherever players are compared. The figure of an episode is its mean over the prices;
families count equally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.evaluation import statistics as st
from deploy.evaluation.play import Row
from deploy.evaluation.players import BEST, BLIND, BUILT, CHOOSER, NEVER, POLICY, SCALES
from deploy.evaluation.sweep import equal_compute, sweep
from deploy.report.statistics import Interval

Array = NDArray[np.float64]
Rows = Mapping[str, Mapping[float, Sequence[Mapping[str, Sequence[Row]]]]]
"""`rows[line][price]` is a list over policies of rows by family: the same seeds in the same order."""
SWEEP, EQUAL = "full sweep", "equal-compute sweep"
WIDTHS_OF_SWEEP = (NEVER, *(BUILT.format(k) for k in SCALES[1:]))


class Line(NamedTuple):
    """One row of the table; means over prices, families and episodes."""

    name: str
    policies: int
    over_never: Interval | None
    policy_over: Interval | None  # what the policy is ahead of it
    improvement: Interval | None  # probability that the policy is better on an episode
    by_price: dict[float, float]  # J over never growing
    accuracy: float
    test_accuracy: float | None
    doublings: float  # at the end
    training_flops: float  # of never growing, geometric mean over episodes


class FamilyLine(NamedTuple):
    """One family."""

    family: str
    over_never: dict[str, float]  # by line
    policy_over_best: Interval | None
    bare: float | None  # share of the policy's episodes at the end of which nothing was added


class WidthLine(NamedTuple):
    """Hosts of one class of widths."""

    widths: str
    episodes: int
    over_never: dict[str, float]  # by line
    doublings: dict[float, float]  # of the policy at the end, by price
    sweep_doublings: dict[float, float]


def with_sweeps(rows: Rows) -> Rows:
    """Return `rows` with the lines that follow from them: the sweep, and one of equal compute for each policy."""
    if not all(name in rows for name in WIDTHS_OF_SWEEP):
        return rows
    found = dict(rows)
    prices = list(rows[NEVER])

    def built(price: float, family: str) -> list[tuple[Row, ...]]:
        return list(zip(*(rows[name][price][0][family] for name in WIDTHS_OF_SWEEP), strict=True))

    families = list(rows[NEVER][prices[0]][0])
    found[SWEEP] = {w: [{f: [sweep(own, w) for own in built(w, f)] for f in families}] for w in prices}
    if POLICY in rows:
        found[EQUAL] = {
            w: [
                {
                    f: [
                        equal_compute(own, w, row.training_flops)
                        for own, row in zip(built(w, f), policy[f], strict=True)
                    ]
                    for f in families
                }
                for policy in rows[POLICY][w]
            ]
            for w in prices
        }
    return found


def width_class(width: int) -> tuple[int, int]:
    """Return the octave of a host's width: 2 to 4, 5 to 8, 9 to 16, and so on."""
    low, high = 2, 4
    while width > high:
        low, high = high + 1, 2 * high
    return low, high


@dataclass(frozen=True)
class Results:
    """The tables of an evaluation; see `Rows`. Use `Results(with_sweeps(rows))`."""

    rows: Rows
    resamples: int = st.RESAMPLES

    @property
    def prices(self) -> list[float]:
        return list(next(iter(self.rows.values())))

    @cached_property
    def families(self) -> list[str]:
        return list(next(iter(self.rows.values()))[self.prices[0]][0])

    def values(
        self, line: str, value: Callable[[Row, float], float], price: float, families: Sequence[str] | None = None
    ) -> Array:
        """Return `[P, F, S]` of a number of each row at a price."""
        chosen = self.families if families is None else families
        return np.array([[[value(r, price) for r in policy[f]] for f in chosen] for policy in self.rows[line][price]])

    def mean_values(
        self, line: str, value: Callable[[Row, float], float], families: Sequence[str] | None = None
    ) -> Array:
        """Return `[P, F, S]`, the mean over the prices."""
        return np.asarray(np.mean([self.values(line, value, w, families) for w in self.prices], axis=0))

    def against(self, line: str, other: str, families: Sequence[str] | None = None) -> Array:
        """Return the paired differences in J, mean over the prices, `[P, Q, F, S]`. A policy is compared with its own
        equal-compute sweep."""
        a, b = self.mean_values(line, objective, families), self.mean_values(other, objective, families)
        return st.differences(a, b, same_policies=EQUAL in (line, other) and len(a) == len(b))

    def interval(self, x: Array, statistic: st.Statistic = st.mean) -> Interval:
        return st.interval(x, statistic, resamples=self.resamples)

    def chance(self, differences: Array) -> Interval:
        """Return the probability of improvement."""
        found = self.interval(st.wins(differences))
        return Interval(found.mean, max(0.0, found.low), min(1.0, found.high))

    def flops_ratio(self, line: str, other: str, geometric: bool = False) -> Array:
        """Return the training FLOPs of `line` relative to those of `other` in the same episode, `[P, 1, F, S]`, mean
        over the prices."""
        logs = [np.log(self.values(line, flops, w)) - np.log(self.values(other, flops, w)) for w in self.prices]
        return np.asarray(np.exp(np.mean(logs, axis=0)) if geometric else np.mean(np.exp(logs), axis=0))[:, None]

    @cached_property
    def lines(self) -> list[Line]:
        return [self._line(name) for name in self.rows]

    def _line(self, name: str) -> Line:
        over = self.against(POLICY, name) if POLICY in self.rows and name != POLICY else None
        test = self.mean_values(name, lambda row, _: row.test_accuracy)
        ratio = self.flops_ratio(name, NEVER, geometric=True)
        return Line(
            name,
            len(self.rows[name][self.prices[0]]),
            None if name == NEVER else self.interval(self.against(name, NEVER)),
            None if over is None else self.interval(over),
            None if over is None else self.chance(over),
            {w: float(self.over_never(name, w).mean()) for w in self.prices},
            float(self.mean_values(name, lambda row, _: row.accuracy).mean()),
            float(test.mean()) if np.isfinite(test).all() else None,
            float(self.mean_values(name, doublings).mean()),
            float(np.exp(np.log(ratio).mean())),
        )

    def over_never(self, line: str, price: float, families: Sequence[str] | None = None) -> Array:
        """Return J over never growing at one price, `[P, F, S]`."""
        return self.values(line, objective, price, families) - self.values(NEVER, objective, price, families)

    @cached_property
    def family_lines(self) -> list[FamilyLine]:
        return [self._family(name) for name in self.families]

    def _family(self, family: str) -> FamilyLine:
        gains = {n: float(self.against(n, NEVER, [family]).mean()) for n in self.rows if n != NEVER}
        if POLICY not in self.rows:
            return FamilyLine(family, gains, None, None)
        over = self.interval(self.against(POLICY, BEST, [family])) if BEST in self.rows else None
        bare = float(self.mean_values(POLICY, lambda row, _: row.bare, [family]).mean())
        return FamilyLine(family, gains, over, bare)

    @cached_property
    def width_lines(self) -> list[WidthLine]:
        drawn = self.values(NEVER, lambda row, _: row.host_width, self.prices[0])[0].astype(int)  # [F, S]
        classes = np.array([[width_class(w)[1] for w in own] for own in drawn])
        found = []
        for high in sorted(set(classes.ravel().tolist())):
            low, inside = width_class(high)[0], classes == high

            def mean(x: Array, inside: NDArray[np.bool_] = inside) -> float:
                return float(x[:, inside].mean())

            def grown(line: str, mean: Callable[[Array], float] = mean) -> dict[float, float]:
                if line not in self.rows:
                    return {}
                return {w: mean(self.values(line, doublings, w)) for w in self.prices}

            gains = {
                n: mean(np.mean([self.over_never(n, w) for w in self.prices], axis=0)) for n in self.rows if n != NEVER
            }
            found.append(WidthLine(f"{low} to {high}", int(inside.sum()), gains, grown(POLICY), grown(SWEEP)))
        return found

    @cached_property
    def sentences(self) -> list[str]:
        """The headline: sentences that summarize the main comparisons."""
        if POLICY not in self.rows:
            return ["Rules only: no policy was evaluated."]
        shape = self.values(POLICY, objective, self.prices[0]).shape
        of = (f"{n} {what if n > 1 else one}" for n, what, one in zip(shape, _PLURALS, _SINGULARS, strict=True))
        scope = ", ".join(of)
        found = []
        for other, name in SENTENCES:
            if other in self.rows:
                found.append(_sentence(name, self.interval(self.against(POLICY, other)), scope))
                scope = ""
        return found


_PLURALS, _SINGULARS = ("policies", "families", "paired episodes"), ("policy", "family", "paired episode")
SENTENCES = (
    (SWEEP, "the full sweep"),
    (BEST, "the best single schedule of each price"),
    (CHOOSER, "the chooser"),
    (EQUAL, "the equal-compute sweep"),
    (NEVER, "never growing"),
    (BLIND, "the blind policy"),
)


def objective(row: Row, price: float) -> float:
    """Return J, in points."""
    return row.objective(price)


def doublings(row: Row, price: float) -> float:
    """Return how often the parameters have doubled at the end."""
    return row.doublings


def flops(row: Row, price: float) -> float:
    """Return the training FLOPs."""
    return row.training_flops


def _sentence(name: str, i: Interval, scope: str) -> str:
    low, high = (-i.high, -i.low) if i.high < 0 else (i.low, i.high)
    within = f"[{low:.2f}, {high:.2f}] (95%{', ' + scope if scope else ''})"
    if i.low > 0:
        return f"The policy beats {name} by {i.mean:.2f} points {within}."
    if i.high < 0:
        return f"The policy is {-i.mean:.2f} points behind {name} {within}."
    return f"The policy and {name} do not differ significantly: {i.mean:+.2f} points {within}."
