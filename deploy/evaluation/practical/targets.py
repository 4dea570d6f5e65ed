"""The targets of the suite `practical`, fixed before the package's policy was measured on it (docs/practical.md).

Models are drawn at random, and so are the trainings of each: intervals are those of `deploy.evaluation.statistics`,
with models for families and widths and seeds for episodes. Five models make them wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from actors.rules.names import is_rule, parse_rule
from actors.rules.trial import Trial
from deploy.evaluation import statistics
from deploy.evaluation.practical.results import BUILT, HALVING, SWEEP, Outcome, PracticalResults
from deploy.evaluation.suite import FREE, PRICED
from deploy.evaluation.targets import Target
from deploy.report.statistics import Interval

TRIAL_BEHIND, POLICY_BEHIND, WORST, WIDE_BEHIND = -0.3, -0.5, -0.5, -0.5  # points
TRIAL_FLOPS, POLICY_FLOPS = 1.05, 1 / 3  # of the sweep's
TWICE = next(iter(BUILT))


def targets(results: Mapping[str, PracticalResults]) -> Iterator[Target]:
    """Yield all targets whose players were asked for."""
    free, priced = results[FREE], results[PRICED]
    rules = [p for p in free.players if p not in BUILT and is_rule(p)]
    for rule in rules:
        if isinstance(parse_rule(rule), Trial):
            yield _over(free, f"{rule} over the sweep, c = 0", rule, SWEEP, TRIAL_BEHIND)
            yield _flops(free, f"FLOPs of {rule}, of the sweep's", rule, TRIAL_FLOPS)
    if policy := free.policy:
        yield _over(free, "policy over the sweep, c = 0", policy, SWEEP, POLICY_BEHIND)
        yield _flops(free, "FLOPs of the policy, of the sweep's", policy, POLICY_FLOPS)
        yield _over(priced, "policy over the sweep, c = p/4", policy, SWEEP)
        if best := _best_rule(priced, rules, policy):
            yield _over(priced, f"policy over the best rule ({best}), c = p/4", policy, best)
        for name, part in results.items():
            yield _over(part, f"policy over successive halving with its FLOPs, {name}", policy, HALVING)
        for name, part in results.items():
            worst = [outcome.over_never for outcome in part.outcomes(policy)]
            title = f"policy over never in its worst training, {name}"
            yield _least(title, worst, WORST, len(worst), len(list(part.trainings())))
        yield _worst_small(free, "policy over built x2, test points, worst small model, c = 0", policy)


def _pairs(
    results: PracticalResults, player: str, other: str, value: Callable[[Outcome, Outcome], float]
) -> dict[str, list[float]]:
    """Return a value of each training that both played, by model."""
    found: dict[str, list[float]] = {}
    for training in results.trainings():
        ours, theirs = results.outcome(training, player), results.outcome(training, other)
        if ours is not None and theirs is not None:
            found.setdefault(training.model, []).append(value(ours, theirs))
    return found


def _mean(values: Mapping[str, Sequence[float]]) -> tuple[float | None, Interval | None]:
    """Return the mean over models, and its interval if there are two values. A model with fewer trainings than others
    repeats the mean of its own, which leaves the models' means, and so the estimate and its spread, what they are."""
    if not values:
        return None, None
    most = max(map(len, values.values()))
    x = np.array([[*row, *[float(np.mean(row))] * (most - len(row))] for row in values.values()])[None, None]
    return float(x.mean()), statistics.interval(x) if x.size > 1 else None


def _over(results: PracticalResults, name: str, player: str, other: str, least: float | None = None) -> Target:
    """Points of J over another player: at least so many or, without a number, an interval above 0."""
    values = _pairs(results, player, other, lambda ours, theirs: ours.over_never - theirs.over_never)
    value, found = _mean(values)
    goal = "interval above 0" if least is None else f"at least {least:g}"
    met = None
    if value is not None:
        met = value >= least if least is not None else found is not None and found.low > 0
    return Target(name, "", value, found, goal, met, sum(map(len, values.values())), len(list(results.trainings())))


def _flops(results: PracticalResults, name: str, player: str, most: float) -> Target:
    ours = list(chain(*_pairs(results, player, SWEEP, lambda ours, _: ours.flops).values()))
    sweep = list(chain(*_pairs(results, player, SWEEP, lambda _, theirs: theirs.flops).values()))
    share = sum(ours) / sum(sweep) if ours else None
    met = None if share is None else share <= most
    return Target(name, "", share, None, f"at most {most:.2f}", met, len(ours), len(list(results.trainings())))


def _best_rule(results: PracticalResults, rules: Sequence[str], policy: str) -> str:
    """Return the rule with the best mean J among those that are played wherever the policy was."""
    played = len(results.outcomes(policy))
    worth = {rule: _pairs(results, rule, policy, lambda ours, _: ours.over_never) for rule in rules}
    full = {rule: ours for rule, ours in worth.items() if 0 < played == sum(map(len, ours.values()))}
    return max(full, key=lambda rule: float(np.mean([np.mean(ours) for ours in full[rule].values()])), default="")


def _worst_small(results: PracticalResults, name: str, policy: str) -> Target:
    """Test points over twice the width, mean of the seeds, on the model of its narrowest width where it is least."""
    narrow = replace(results, widths={model.name: model.widths[:1] for model in results.models})
    values = _pairs(narrow, policy, TWICE, lambda ours, built: ours.test - built.test)
    means = [float(np.mean(found)) for found in values.values()]
    return _least(name, means, WIDE_BEHIND, sum(map(len, values.values())), len(list(narrow.trainings())))


def _least(name: str, values: Sequence[float], least: float, trainings: int, wanted: int) -> Target:
    value = min(values, default=None)
    met = None if value is None else value >= least
    return Target(name, "", value, None, f"at least {least:g}", met, trainings, wanted)
