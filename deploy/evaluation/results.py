"""`Results`: all rows of an evaluation as arrays, and the tables, targets and sentences computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.evaluation import statistics as st
from deploy.evaluation.play import Row
from deploy.evaluation.suite import Member
from deploy.report.statistics import Interval

Array = NDArray[np.float64]
MAIN, PERIODIC, CEILING, NEVER, BLIND = "policy greedy", "tuned periodic", "per-task best", "never grow", "blind greedy"
SCRATCH, SAMPLED = "from scratch", "policy sampled"
FIXED, STREAM = "fixed column", "periodic in the stream"
SENTENCES = (
    (MAIN, FIXED, "The policy", "one column of twice the width at epoch 3"),
    (MAIN, PERIODIC, "The policy", "the tuned periodic schedule"),
    (MAIN, NEVER, "The policy", "never growing"),
    (SAMPLED, PERIODIC, "Sampled instead of greedy, it", "the tuned periodic schedule"),
)
MARGIN_POINTS = 0.5  # of accuracy, that growing may cost
PRICES = (0.5, 1.0, 2.0, 4.0)
"""Points per doubling of the parameters, at which policies and schedules are compared."""


class Line(NamedTuple):
    """One line of the table; comparisons are with never growing, and of the policy with this line."""

    name: str
    policies: int
    objective: float
    iqm_over_never: Interval | None
    over_never: Interval | None
    policy_over: Interval | None
    improvement: Interval | None  # probability that the policy is better on an episode
    accuracy: float
    test_accuracy: float
    params: float  # of the host's own
    training_flops: float  # of never growing
    inference_flops: float  # of never growing


class FamilyLine(NamedTuple):
    """One family: what each player gains over never growing on the same episodes, on average."""

    family: str
    label: str  # for tables
    headline: bool
    dont_grow: bool
    over_never: dict[str, float]  # by line
    deviation: float | None  # standard deviation over episodes of what the fixed column gains
    policy_over_fixed: Interval | None
    bare: float | None  # share of the policy's episodes that end with nothing grown


class EvaluationTarget(NamedTuple):
    name: str
    value: float | None
    goal: float
    met: bool
    told: str


@dataclass(frozen=True)
class Results:
    """`rows[line][policy][family]` are the rows on the same seeds, in the same order."""

    rows: dict[str, list[dict[str, list[Row]]]]
    members: tuple[Member, ...]
    price: float
    resamples: int = st.RESAMPLES

    @property
    def headline(self) -> list[str]:
        """Families that count; all where none does."""
        return [m.family for m in self.members if m.headline] or [m.family for m in self.members]

    def array(self, line: str, name: str, families: Sequence[str] | None = None) -> Array:
        """`[P, F, S]` of one field of the rows, or of `objective`."""

        def value(row: Row) -> float:
            return row.objective(self.price) if name == "objective" else float(getattr(row, name))

        chosen = self.headline if families is None else families
        return np.array([[[value(r) for r in policy[f]] for f in chosen] for policy in self.rows[line]])

    def against(self, line: str, other: str, name: str = "objective", families: Sequence[str] | None = None) -> Array:
        """Paired differences `[P, Q, F, S]`; who follows a policy is compared with that one."""
        a, b = self.array(line, name, families), self.array(other, name, families)
        return st.differences(a, b, same_policies=other in (SCRATCH, "random matched", "from scratch, compute-matched"))

    @cached_property
    def lines(self) -> list[Line]:
        return [self._line(name) for name in self.rows]

    def _line(self, name: str) -> Line:
        own = self.array(name, "objective")
        base = {field: self.array(NEVER, field).mean() for field in ("training_flops", "inference_flops")}
        ratio = self.array(name, "final_params") / self.array(name, "host_params")
        compared = MAIN in self.rows and name != MAIN and not name.startswith("policy")
        over = self.against(MAIN, name) if compared else None
        return Line(
            name,
            len(self.rows[name]),
            float(own.mean()),
            None if name == NEVER else self._interval(self.against(name, NEVER), st.iqm),
            None if name == NEVER else self._interval(self.against(name, NEVER)),
            None if over is None else self._interval(over),
            None if over is None else self._chance(over),
            float(self.array(name, "accuracy").mean()),
            float(self.array(name, "test_accuracy").mean()),
            float(ratio.mean()),
            float(self.array(name, "training_flops").mean() / base["training_flops"]),
            float(self.array(name, "inference_flops").mean() / base["inference_flops"]),
        )

    def _interval(self, x: Array, statistic: st.Statistic = st.mean) -> Interval:
        return st.interval(x, statistic, resamples=self.resamples)

    def _chance(self, differences: Array) -> Interval:
        found = self._interval(st.wins(differences))
        return Interval(found.mean, max(0.0, found.low), min(1.0, found.high))

    @cached_property
    def targets(self) -> list[EvaluationTarget]:
        """Those of the study, where the players that they need were played."""
        if MAIN not in self.rows:
            return []
        found = [
            *self._fixed(),
            *self._gap(),
            *self._blind(),
            *self._improvement(),
            *self._scratch(),
            *self._dont_grow(),
        ]
        return [*found, self._finite()]

    def _fixed(self) -> list[EvaluationTarget]:
        if FIXED not in self.rows:
            return []
        over = self.against(MAIN, FIXED)
        margin, chance = self._interval(over), self._chance(over)
        return [
            _target("points of J over the fixed column", margin.low, 0.0, _range(margin), above=True),
            _target("probability of improvement on the fixed column", chance.mean, 0.65, _range(chance).lstrip("+")),
        ]

    def _gap(self) -> list[EvaluationTarget]:
        if PERIODIC not in self.rows or CEILING not in self.rows:
            return []
        over, gap = self.against(MAIN, PERIODIC), self.against(CEILING, PERIODIC)
        closed, margin = st.share(over, gap, resamples=self.resamples), self._interval(over)
        points = _target("points of J over the tuned periodic schedule", margin.low, 0.0, _range(margin), above=True)
        name = "share of the gap to the per-task best closed"
        if closed is None:
            return [EvaluationTarget(name, None, 0.5, False, f"no certain gap: {_range(self._interval(gap))}"), points]
        return [_target(name, closed.mean, 0.5, _range(closed).lstrip("+")), points]

    def _blind(self) -> list[EvaluationTarget]:
        if BLIND not in self.rows:
            return []
        margin = self._interval(self.against(MAIN, BLIND))
        return [_target("points of J over the blind policy", margin.low, 0.0, _range(margin), above=True)]

    def _improvement(self) -> list[EvaluationTarget]:
        if PERIODIC not in self.rows:
            return []
        chance = self._chance(self.against(MAIN, PERIODIC))
        return [_target("probability of improvement on periodic", chance.mean, 0.65, _range(chance).lstrip("+"))]

    def _scratch(self) -> list[EvaluationTarget]:
        if SCRATCH not in self.rows:
            return []
        lost = self.against(MAIN, SCRATCH, "test_accuracy")
        low = st.one_sided(lost)
        told = f"{lost.mean():+.2f}, at least {low:+.2f} (one-sided 95%)"
        return [_target("test accuracy against from scratch", low, -MARGIN_POINTS, told, above=True)]

    def _dont_grow(self) -> list[EvaluationTarget]:
        families = [m.family for m in self.members if m.dont_grow]
        if not families:
            return []
        bare = [_bare(row) for policy in self.rows[MAIN] for f in families for row in policy[f]]
        share = float(np.mean(bare))
        return [_target("share of don't-grow episodes that end bare", share, 0.9, f"{sum(bare)} of {len(bare)}")]

    def _finite(self) -> EvaluationTarget:
        rows = [row for line in self.rows.values() for policy in line for own in policy.values() for row in own]
        broken = sum(not row.finite for row in rows)
        return EvaluationTarget("episodes with NaN", float(broken), 0.0, broken == 0, f"{broken} of {len(rows):,}")

    @cached_property
    def families(self) -> list[FamilyLine]:
        """All of the suite, in its order."""
        return [self._family(m) for m in self.members]

    def _family(self, member: Member) -> FamilyLine:
        own = [member.family]
        gains = {n: float(self.against(n, NEVER, families=own).mean()) for n in self.rows if n != NEVER}
        spread = float(self.against(FIXED, NEVER, families=own).std(ddof=1)) if FIXED in self.rows else None
        label = member.family + ("" if member.headline else " (not in headlines)")
        label += ", don't grow" if member.dont_grow else ""
        told = (member.family, label, member.headline, member.dont_grow, gains, spread)
        if MAIN not in self.rows:
            return FamilyLine(*told, None, None)
        over = self._interval(self.against(MAIN, FIXED, families=own)) if FIXED in self.rows else None
        bare = [_bare(row) for policy in self.rows[MAIN] for row in policy[member.family]]
        return FamilyLine(*told, over, float(np.mean(bare)))

    def by_family(self, line: str) -> dict[str, dict[str, float]]:
        """What each family's rows came to, all families of the suite."""
        found = {}
        for member in self.members:
            own = [member.family]
            found[member.family] = {
                "objective": float(self.array(line, "objective", own).mean()),
                "accuracy": float(self.array(line, "accuracy", own).mean()),
                "rent": float(self.array(line, "rent", own).mean()),
                "fossilized": float(self.array(line, "fossilized", own).mean()),
            }
        return found

    def regret(self, line: str) -> dict[str, float]:
        """Points of J that the per-task best is ahead, by family."""
        return {
            m.family: float(-self.against(line, CEILING, families=[m.family]).mean())
            for m in self.members
            if CEILING in self.rows
        }

    @cached_property
    def sentences(self) -> list[str]:
        """The headline: sentences that summarize the main comparisons."""
        if MAIN not in self.rows:
            return ["Rules only: no policy was evaluated."]
        policies, families = len(self.rows[MAIN]), len(self.headline)
        seeds = self.array(MAIN, "objective").shape[2]
        scope = f"{policies} {'policy' if policies == 1 else 'policies'}, {families} families, {seeds} paired episodes"
        told = []
        for line, other, subject, name in SENTENCES:
            if line in self.rows and other in self.rows:
                told.append(_sentence(subject, name, self._interval(self.against(line, other)), scope))
                scope = ""
        return told

    def as_dict(self) -> dict[str, Any]:
        lines = [_plain(line) for line in self.lines]
        for line in lines:
            line["families"] = self.by_family(line["name"])
            line["regret"] = self.regret(line["name"])
        return {
            "headline": self.sentences,
            "price": self.price,
            "families": [m._asdict() if hasattr(m, "_asdict") else vars(m) for m in self.members],
            "targets": [t._asdict() for t in self.targets],
            "by_family": [_plain(f) for f in self.families],
            "lines": lines,
        }


def _bare(row: Row) -> bool:
    """Nothing was kept: the host is what it was."""
    return row.fossilized == 0 and row.final_params == row.host_params


def _plain(line: Line | FamilyLine) -> dict[str, Any]:
    return {k: v._asdict() if isinstance(v, Interval) else v for k, v in line._asdict().items()}


def _range(i: Interval) -> str:
    return f"{i.mean:+.2f} [{i.low:.2f}, {i.high:.2f}]"


def _target(name: str, value: float, goal: float, told: str, above: bool = False) -> EvaluationTarget:
    return EvaluationTarget(name, value, goal, value > goal if above else value >= goal, told)


def _sentence(subject: str, name: str, i: Interval, scope: str) -> str:
    low, high = (-i.high, -i.low) if i.high < 0 else (i.low, i.high)
    within = f"[{low:.2f}, {high:.2f}] (95%{', ' + scope if scope else ''})"
    if i.low > 0:
        return f"{subject} beats {name} by {i.mean:.2f} points {within}."
    if i.high < 0:
        return f"{subject} is worse than {name} by {-i.mean:.2f} points {within}."
    return f"{subject} does not beat {name}: {i.mean:+.2f} points {within}, an interval that includes zero."
