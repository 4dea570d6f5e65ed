"""What each seed is worth: ablations of one network on its validation rows.

The value v(A) of a set A of slots is the validation accuracy with exactly the seeds of A switched on. TRAINING seeds
are off in the present configuration; their contribution is the effect of switching them on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from math import factorial

Subset = frozenset[int]


@dataclass(frozen=True)
class Contributions:
    """Points of validation accuracy, by slot."""

    leave_one_out: dict[int, float]
    interaction: dict[int, float]  # mean over partners j of v(ij) - v(i) - v(j) + v(none); absent without partners
    shapley: dict[int, float]  # empty with more than three filled slots


def subsets_to_evaluate(present: Iterable[int], training: Iterable[int]) -> list[Subset]:
    """All subsets of at most three filled slots; with more, leave-one-out, all-off and solo ones."""
    on, off = frozenset(present), frozenset(training)
    filled = on | off
    if len(filled) <= 3:
        return [frozenset(c) for n in range(len(filled) + 1) for c in combinations(sorted(filled), n)]
    wanted = [on, frozenset[int](), *(on ^ {s} for s in sorted(filled)), *(frozenset({s}) for s in sorted(filled))]
    return list(dict.fromkeys(wanted))


def measure(value: Callable[[Subset], float], present: Iterable[int], training: Iterable[int]) -> Contributions:
    """`value(A)` is the measured accuracy of each subset of `subsets_to_evaluate`."""
    on, off = frozenset(present), frozenset(training)
    filled = sorted(on | off)
    alone = {s: value(on | {s}) - value(on - {s}) for s in filled}
    if len(filled) > 3:
        return Contributions(alone, {}, {})
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
    return Contributions(alone, interaction, {i: _shapley(value, i, filled) for i in filled})


def _shapley(value: Callable[[Subset], float], i: int, players: list[int]) -> float:
    """Shapley (1953): the marginal contribution of i averaged over all orders of arrival."""
    others, n = [p for p in players if p != i], len(players)
    total = 0.0
    for size in range(n):
        weight = factorial(size) * factorial(n - size - 1) / factorial(n)
        for coalition in combinations(others, size):
            total += weight * (value(frozenset({*coalition, i})) - value(frozenset(coalition)))
    return total
