"""`ColumnLossChoice`: which loss columns train on by `auto`, and the model's training loss, on which it depends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from actors.slots.growth_state import GrowthState
from actors.slots.slot_shape import SlotKind

logger = logging.getLogger(__name__)

BATCHES = 8
"""Most minibatches of an epoch that are measured."""


class ColumnLossChoice:
    """Lets columns learn the task itself once the model overfits. Its training loss is that of a few minibatches
    of an epoch, where the user's loop does not report it and a column needs it."""

    def __init__(self, growth: GrowthState, names: Sequence[str]) -> None:
        """`names` are those of the slots, for the log."""
        self._growth, self._names, self.meter = growth, names, TrainLossMeter()

    def _undecided(self) -> list[int]:
        """Return the slots of columns in TRAINING that may yet change what they learn."""
        if self._growth.column_loss != "auto":
            return []
        shapes, learning = self._growth.slot_shapes, self._growth.learning()
        return [s for s, strength in learning.items() if shapes[s].kind is SlotKind.COLUMN and strength < 1.0]

    def measure(self, host_loss: Callable[[], Tensor], steps_per_epoch: int) -> None:
        """Measure the loss of the current minibatch if it is needed and due."""
        if self._undecided() and self.meter.due(steps_per_epoch):
            self.meter.add(host_loss())

    def choose(self, epoch: int, train_loss: float | None, val_loss: float) -> None:
        """Take note of the losses of an epoch."""
        before = self._undecided()
        self._growth.record_losses(train_loss, val_loss)
        for s in set(before) - set(self._undecided()):
            logger.info(
                "epoch %d: the training loss is %.3g, the validation loss %.3g: %s learns the task itself from now on",
                epoch, train_loss, val_loss, self._names[s],
            )  # fmt: skip


class TrainLossMeter:
    """Chooses minibatches that are spread over an epoch, and averages what they measure."""

    def __init__(self) -> None:
        self._seen = 0
        self._losses: list[Tensor] = []

    def due(self, steps_per_epoch: int) -> bool:
        """Count a minibatch, and return whether it is to be measured. The number of minibatches of an epoch may be
        unknown, as 0."""
        at, self._seen = self._seen, self._seen + 1
        return at % -(-max(steps_per_epoch, 1) // BATCHES) == 0 and len(self._losses) < BATCHES

    def add(self, loss: Tensor) -> None:
        self._losses.append(loss.float())

    def take(self) -> float | None:
        """Return the mean, None if nothing was measured, and begin a new epoch."""
        losses, self._losses, self._seen = self._losses, [], 0
        return float(torch.stack(losses).mean()) if losses else None
