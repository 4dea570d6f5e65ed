"""The targets of the suite `practical`, fixed before the package's policy was measured on it (docs/practical.md).

Models are drawn at random, and so are the trainings of each: intervals are those of `deploy.evaluation.statistics`,
with models for families and widths and seeds for episodes. Five models make them wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.rules.names import is_rule, parse_rule
from actors.rules.trial import Trial
from deploy.evaluation import statistics
from deploy.evaluation.practical.results import BUILT, HALVING, SWEEP, Outcome, PracticalResults
from deploy.evaluation.suite import FREE, PRICED
from deploy.report.statistics import Interval

TRIAL_BEHIND, POLICY_BEHIND, WORST, WIDE_BEHIND = -0.3, -0.5, -0.5, -0.5  # points
TRIAL_FLOPS, POLICY_FLOPS = 1.05, 1 / 3  # of the sweep's
TWICE = next(iter(BUILT))


class PracticalTarget(NamedTuple):
    """A figure with its goal. `value` is None, and `met` too, where no training has all cells that it needs."""

    name: str
    value: float | None
    interval: Interval | None
    goal: str
    met: bool | None
    trainings: int  # that it was measured on
    wanted: int

    @property
    def measured(self) -> str:
        if self.value is None:
            return "not yet"
        i = self.interval
        return f"{self.value:.2f}" + (f" [{i.low:.2f}, {i.high:.2f}]" if i else "")

    @property
    def verdict(self) -> str:
        """Say whether it is met, by the trainings that were played."""
        if self.met is None:
            return ""
        return ("met" if self.met else "missed") + ("" if self.trainings == self.wanted else " so far")


def targets(results: Mapping[str, PracticalResults]) -> list[PracticalTarget]:
    """Return all targets whose players were asked for."""
    free, priced = results[FREE], results[PRICED]
    rules = [p for p in free.players if p not in BUILT and is_rule(p)]
    found = []
    for rule in rules:
        if isinstance(parse_rule(rule), Trial):
            found.append(_over(free, f"{rule} over the sweep, c = 0", rule, SWEEP, TRIAL_BEHIND))
            found.append(_flops(free, f"FLOPs of {rule}, of the sweep's", rule, TRIAL_FLOPS))
    if policy := free.policy:
        found.append(_over(free, "policy over the sweep, c = 0", policy, SWEEP, POLICY_BEHIND))
        found.append(_flops(free, "FLOPs of the policy, of the sweep's", policy, POLICY_FLOPS))
        found.append(_over(priced, "policy over the sweep, c = p/4", policy, SWEEP, None))
        if best := _best_rule(priced, rules, policy):
            found.append(_over(priced, f"policy over the best rule ({best}), c = p/4", policy, best, None))
        found.append(_over(free, "policy over successive halving with its FLOPs, c = 0", policy, HALVING, None))
        found.append(_over(priced, "policy over successive halving with its FLOPs, c = p/4", policy, HALVING, None))
        for name, own in results.items():
            found.append(_worst_training(own, f"policy over never in its worst training, {name}", policy))
        found.append(_worst_small(free, "policy over built x2, test points, worst small model, c = 0", policy))
    return found


def paired(
    results: PracticalResults, player: str, other: str, value: Callable[[Outcome, Outcome], Sequence[float]]
) -> dict[str, list[Sequence[float]]]:
    """Return values of pairs of outcomes, by model, of all trainings that both played."""
    found: dict[str, list[Sequence[float]]] = {}
    for training in results.trainings():
        own, theirs = results.outcome(training, player), results.outcome(training, other)
        if own is not None and theirs is not None:
            found.setdefault(training.model, []).append(value(own, theirs))
    return found


def array(values: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    """Return `[1, 1, M, K]` of values by model; a model with fewer trainings than others repeats the mean of its own,
    which leaves the models' means, and so the estimate and its spread, what they are."""
    most = max(map(len, values.values()))
    rows = [[*row, *[float(np.mean(row))] * (most - len(row))] for row in values.values()]
    return np.asarray(rows)[None, None]


def interval_of(values: Mapping[str, Sequence[float]]) -> Interval | None:
    """Return the mean over models with its interval; None without two values."""
    x = array(values)
    return statistics.interval(x) if x.size > 1 else None


def _target(
    results: PracticalResults,
    name: str,
    goal: str,
    values: Mapping[str, Sequence[float]],
    meets: Callable[[float, Interval | None], bool],
) -> PracticalTarget:
    wanted = len(list(results.trainings()))
    if not values:
        return PracticalTarget(name, None, None, goal, None, 0, wanted)
    value, found = float(array(values).mean((0, 1, 3)).mean()), interval_of(values)
    return PracticalTarget(name, value, found, goal, meets(value, found), sum(map(len, values.values())), wanted)


def _over(results: PracticalResults, name: str, player: str, other: str, least: float | None) -> PracticalTarget:
    """Points of J over another player: at least so many or, without a number, an interval above 0."""
    pairs = paired(results, player, other, lambda own, theirs: [own.over_never - theirs.over_never])
    values = {model: [pair[0] for pair in own] for model, own in pairs.items()}
    if least is not None:
        return _target(results, name, f"at least {least:g}", values, lambda value, _: value >= least)
    return _target(results, name, "interval above 0", values, lambda _, i: i is not None and i.low > 0)


def _flops(results: PracticalResults, name: str, player: str, most: float) -> PracticalTarget:
    """Mean training FLOPs over those of the sweep."""
    pairs = paired(results, player, SWEEP, lambda own, theirs: [own.flops, theirs.flops])
    goal, wanted = f"at most {most:.2f}", len(list(results.trainings()))
    if not pairs:
        return PracticalTarget(name, None, None, goal, None, 0, wanted)
    rows = np.concatenate([np.asarray(own) for own in pairs.values()])
    share = float(rows[:, 0].mean() / rows[:, 1].mean())
    return PracticalTarget(name, share, None, goal, share <= most, len(rows), wanted)


def _best_rule(results: PracticalResults, rules: Sequence[str], policy: str) -> str:
    """Return the rule with the best mean J among those that are played wherever the policy was."""

    def worth(rule: str) -> float:
        pairs = paired(results, rule, policy, lambda own, _: [own.over_never])
        return float(np.mean([np.mean(own) for own in pairs.values()]))

    played = [t for t in results.trainings() if results.outcome(t, policy)]
    full = [rule for rule in rules if played and all(results.outcome(t, rule) for t in played)]
    return max(full, key=worth, default="")


def _worst_training(results: PracticalResults, name: str, policy: str) -> PracticalTarget:
    found = [outcome.over_never for outcome in results.outcomes(policy)]
    value, wanted = min(found, default=None), len(list(results.trainings()))
    met = None if value is None else value >= WORST
    return PracticalTarget(name, value, None, f"at least {WORST:g}", met, len(found), wanted)


def _worst_small(results: PracticalResults, name: str, policy: str) -> PracticalTarget:
    """Test points over twice the width, mean of the seeds, on the model of its narrowest width where it is least."""
    means, count = [], 0
    for model in results.models:
        width = model.widths[0]
        both = [(results.outcome(t, policy), results.outcome(t, TWICE)) for t in results.trainings(model.name, width)]
        found = [own.test - built.test for own, built in both if own and built]
        count += len(found)
        means += [float(np.mean(found))] if found else []
    value, wanted = min(means, default=None), len(results.models) * len(results.seeds)
    met = None if value is None else value >= WIDE_BEHIND
    return PracticalTarget(name, value, None, f"at least {WIDE_BEHIND:g}", met, count, wanted)
