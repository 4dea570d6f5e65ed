"""The objective J of a training, and the rewards that add up to it.

J = A_T - A_0 - p D_T - c C_T - penalties, in points. A is the accuracy of the model as it would be exported; D is how
often its parameters have doubled; C is how often the training FLOPs have doubled, where a run that never grows has 0.
The reward of an epoch is the change of A - p D - c C, so the undiscounted sum of the rewards is J, whatever happens in
between: a price is charged when a seed joins, and refunded when it is pruned.
"""

from __future__ import annotations

from typing import NamedTuple


class Prices(NamedTuple):
    """What growth costs, in points."""

    doubling: float  # p, of the parameters of the model that is kept
    compute_doubling: float  # c, of the FLOPs of the whole training


class Standing(NamedTuple):
    """What J depends on, at one moment of a training."""

    accuracy: float  # A, points
    doublings: float = 0.0  # D, of the model's parameters
    compute_doublings: float = 0.0  # C, of the training FLOPs

    def worth(self, prices: Prices) -> float:
        """Return A - p D - c C, in points."""
        return self.accuracy - prices.doubling * self.doublings - prices.compute_doubling * self.compute_doublings


def objective_reward(before: Standing, after: Standing, prices: Prices, penalty: float = 0.0) -> float:
    """Return the term of J for one epoch, in points."""
    return after.worth(prices) - before.worth(prices) - penalty


def objective(untrained_accuracy: float, final: Standing, prices: Prices, penalties: float = 0.0) -> float:
    """Return J of a whole training, computed from its definition."""
    return final.worth(prices) - untrained_accuracy - penalties
