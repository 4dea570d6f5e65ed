"""`Compute`: the training FLOPs of a run against those of the same run without growth.

The unit is an epoch of training of the bare model, three forward passes of every sample (one forward, two backward).
The bare model's own evaluation is not counted, nor is that of a grown one; the evaluations that measure contributions
are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

TRAINING_PASSES = 3


@dataclass
class Compute:
    """What a run has spent so far."""

    horizon_epochs: int
    spent: float = 0.0  # epochs of the bare model
    epochs: int = 0

    def add(self, cost: float) -> None:
        """Count one epoch that cost as much as `cost` epochs of the bare model."""
        self.spent += cost
        self.epochs += 1

    @property
    def epochs_left(self) -> int:
        return max(self.horizon_epochs - self.epochs, 0)

    def effort(self, more_per_epoch: float) -> float:
        """Return by how much C grows if each epoch that is left costs so much more than one of the bare model."""
        planned = self.spent + self.epochs_left
        return log2(1.0 + more_per_epoch * self.epochs_left / planned) if planned else 0.0

    def doublings(self, more_per_epoch: float = 0.0) -> float:
        """Return C = log2(F / F_bare), where F is what was spent and what the bare model needs up to the horizon.

        With `more_per_epoch`, each epoch that is left costs so much more than one of the bare model.
        """
        rest = self.epochs_left * (1.0 + more_per_epoch)
        return log2((self.spent + rest) / max(self.horizon_epochs, self.epochs, 1))
