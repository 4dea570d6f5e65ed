"""How much each seed contributes: leave-one-out differences and interactions of validation accuracy.

The value v(A) of a set A of slots is the validation accuracy of the host with exactly the seeds in A switched on. A
seed in TRAINING is normally off; its leave-one-out contribution is the effect of switching it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

Subset = frozenset[int]
"""Slots whose seeds are switched on."""


class EvalResult(NamedTuple):
    """What evaluating a network on some rows measures."""

    accuracy: float  # points, 0 to 100
    loss: float  # cross-entropy, nats


class Validation(NamedTuple):
    """What evaluating a network on the validation rows measures."""

    observed: EvalResult  # on the rows that the policy sees
    scored: float  # accuracy on the other rows, of which J and rewards are made, points


@dataclass(frozen=True)
class Contributions:
    """Points of validation accuracy, by slot."""

    leave_one_out: dict[int, float]
    interaction: dict[int, float]
    """Mean over partners j of v(ij) - v(i) - v(j) + v(none). It needs a partner, and at most three filled slots."""


def subsets_to_evaluate(blended: Iterable[int], training: Iterable[int]) -> list[Subset]:
    """Return the sets of slots whose values `contributions` needs.

    With at most three filled slots these are all subsets; with more, the blended seeds and that set with one seed
    switched.
    """
    on, off = frozenset(blended), frozenset(training)
    filled = on | off
    if len(filled) <= 3:
        return [frozenset(c) for n in range(len(filled) + 1) for c in combinations(sorted(filled), n)]
    return [on, *(on ^ {s} for s in sorted(filled))]


def contributions(value: Callable[[Subset], float], blended: Iterable[int], training: Iterable[int]) -> Contributions:
    """Compute contributions from `value(A)`, the accuracy of each subset in `subsets_to_evaluate`."""
    on, off = frozenset(blended), frozenset(training)
    filled = sorted(on | off)
    leave_one_out = {s: value(on | {s}) - value(on - {s}) for s in filled}
    if len(filled) > 3:
        return Contributions(leave_one_out, {})
    none: Subset = frozenset()
    interaction = {
        i: sum(
            value(frozenset({i, j})) - value(frozenset({i})) - value(frozenset({j})) + value(none)
            for j in filled
            if j != i
        )
        / (len(filled) - 1)
        for i in filled
        if len(filled) > 1
    }
    return Contributions(leave_one_out, interaction)
