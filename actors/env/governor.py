"""The governor: notices that a host's training has broken, so that the environment can put the last good state back."""

from __future__ import annotations

from collections import deque
from math import isfinite
from statistics import median

PENALTY_POINTS = 5.0
LOSS_FACTOR = 4.0  # times the median of recent validation losses ...
LOSS_SLACK = 2.0  # ... plus this many times the loss of the uniform guess
COLLAPSE_POINTS = 15.0  # accuracy must have stood this far above chance for its loss to be a collapse
CHANCE_MARGIN_POINTS = 2.0
WINDOW_EPOCHS = 8


class Governor:
    def __init__(self, num_classes: int, chance_loss: float) -> None:
        self.chance_accuracy = 100.0 / num_classes
        self.chance_loss = chance_loss
        self._losses: deque[float] = deque(maxlen=WINDOW_EPOCHS)
        self._best = 0.0

    def begin(self, untrained_loss: float) -> None:
        """The untrained host's validation loss is what the first epoch is held against."""
        if isfinite(untrained_loss):
            self._losses.append(untrained_loss)

    def check(self, train_loss: float, val_loss: float, accuracy: float) -> str | None:
        """The reason for a panic, or None; `accuracy` in points. Healthy epochs become the history."""
        if not (isfinite(train_loss) and isfinite(val_loss)):
            return "loss is not finite"
        if self._losses:
            usual = median(self._losses)
            if val_loss > LOSS_FACTOR * usual + LOSS_SLACK * self.chance_loss:
                return f"validation loss {val_loss:.3g} far above its recent median {usual:.3g}"
        if (
            accuracy <= self.chance_accuracy + CHANCE_MARGIN_POINTS
            and self._best >= self.chance_accuracy + COLLAPSE_POINTS
        ):
            return f"accuracy {accuracy:.1f} collapsed to chance from {self._best:.1f}"
        self._losses.append(val_loss)
        self._best = max(self._best, accuracy)
        return None


def penalty(rent_weight: float, last_rent: float, epochs_left: int, horizon_epochs: int) -> float:
    """Points charged for a panic: a fine, and the rent that an early end would otherwise save."""
    return PENALTY_POINTS + rent_weight * last_rent * epochs_left / horizon_epochs
