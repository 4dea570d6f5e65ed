"""`Governor`: detects that the training of a host broke down, so that the environment can end the episode."""

from __future__ import annotations

from collections import deque
from math import isfinite, log
from statistics import median

PENALTY_POINTS = 5.0  # charged for a panic, beside what the rest of the training would have cost
LOSS_FACTOR = 4.0  # a loss explodes above this many times the median of recent validation losses ...
LOSS_SLACK = 2.0  # ... plus this many times the loss of the uniform guess
COLLAPSE_POINTS = 15.0  # only an accuracy that was this far above chance can collapse
CHANCE_MARGIN_POINTS = 2.0
WINDOW_EPOCHS = 8


class Governor:
    """Watches the losses and the accuracy of one host.

    It panics if a loss is not finite, if the validation loss exceeds `LOSS_FACTOR` times the median of its last
    `WINDOW_EPOCHS` epochs plus `LOSS_SLACK` times the chance loss, or if an accuracy that was at least
    `COLLAPSE_POINTS` above chance falls to within `CHANCE_MARGIN_POINTS` of it.
    """

    def __init__(self, num_classes: int, untrained_loss: float) -> None:
        """`untrained_loss` is the validation loss of the untrained host, to which the first epoch is compared."""
        self.chance_accuracy, self.chance_loss = 100.0 / num_classes, log(num_classes)
        self._losses = deque([untrained_loss] if isfinite(untrained_loss) else [], maxlen=WINDOW_EPOCHS)
        self._best = 0.0

    def check(self, train_loss: float, val_loss: float, accuracy: float) -> str | None:
        """Return the reason for a panic, or None after a healthy epoch; `accuracy` in points."""
        if not (isfinite(train_loss) and isfinite(val_loss)):
            return "loss is not finite"
        if self._losses:
            usual = median(self._losses)
            if val_loss > LOSS_FACTOR * usual + LOSS_SLACK * self.chance_loss:
                return f"validation loss {val_loss:.3g} is far above its recent median {usual:.3g}"
        if (
            accuracy <= self.chance_accuracy + CHANCE_MARGIN_POINTS
            and self._best >= self.chance_accuracy + COLLAPSE_POINTS
        ):
            return f"accuracy {accuracy:.1f} collapsed to chance from {self._best:.1f}"
        self._losses.append(val_loss)
        self._best = max(self._best, accuracy)
        return None
