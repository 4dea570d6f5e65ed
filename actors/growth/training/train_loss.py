"""`TrainLossMeter`: the model's loss on a few minibatches of an epoch, where the user's loop does not report it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

BATCHES = 8
"""Most minibatches of an epoch that are measured."""


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


@contextmanager
def unscaled_losses() -> Iterator[None]:
    """Let `GradScaler.scale` return what it is given within the context."""
    scaler: Any = torch.amp.GradScaler
    scale = scaler.scale
    scaler.scale = lambda self, outputs: outputs
    try:
        yield
    finally:
        scaler.scale = scale
