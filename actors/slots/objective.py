"""The objective J of a training, and the rewards that add up to it.

J = final accuracy - accuracy of the untrained host - rent_weight * mean rent over the horizon - penalties, in points,
where the rent of an epoch is log2((host + seeds) / host), in doublings of the host's parameters. Its term for one epoch
is r_t = change of accuracy - rent_weight * rent_t / horizon - penalty_t, so the undiscounted sum of the terms is J.
"""

from __future__ import annotations

from collections.abc import Sequence


def objective_reward(
    accuracy: float,
    previous_accuracy: float,
    rent: float,
    rent_weight: float,
    horizon_epochs: int,
    penalty: float = 0.0,
) -> float:
    """Return the term of J for one epoch, in points."""
    return accuracy - previous_accuracy - rent_weight * rent / horizon_epochs - penalty


def objective(
    final_accuracy: float,
    untrained_accuracy: float,
    rents: Sequence[float],
    rent_weight: float,
    horizon_epochs: int,
    penalties: float = 0.0,
) -> float:
    """Return J of a whole episode, computed from its definition."""
    return final_accuracy - untrained_accuracy - rent_weight * sum(rents) / horizon_epochs - penalties
