"""The objective J, step by step.

J = final accuracy - accuracy of the untrained host - rent_weight * mean rent over the horizon - penalties, in points.
The dense reward r_t = change of accuracy - rent_weight * rent_t / horizon - penalty_t telescopes: its undiscounted sum
is J.
"""

from __future__ import annotations


def objective_reward(
    accuracy: float,
    previous_accuracy: float,
    rent: float,
    rent_weight: float,
    horizon_epochs: int,
    penalty: float = 0.0,
) -> float:
    """One step's reward in points; rent = added parameters / host parameters."""
    return accuracy - previous_accuracy - rent_weight * rent / horizon_epochs - penalty


def objective(
    final_accuracy: float,
    untrained_accuracy: float,
    rents: list[float],
    rent_weight: float,
    horizon_epochs: int,
    penalties: float = 0.0,
) -> float:
    """J from its definition, for one whole episode."""
    return final_accuracy - untrained_accuracy - rent_weight * sum(rents) / horizon_epochs - penalties
