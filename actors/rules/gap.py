"""`GapRule`: grow a column where the model has too little capacity, as its two losses show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actors.config import require
from actors.rules.rule import AVERAGE, WAIT, ModelState, RulePolicy, choices
from actors.slots.stage import Stage
from actors.types.actions import Op
from actors.types.spaces import Spaces


@dataclass(frozen=True)
class GapSettings:
    """When `GapRule` grows, and what."""

    blueprint: int
    """Index of a column blueprint."""
    gap: float
    """Largest excess of the validation loss over the training loss, as a share of the loss of the uniform guess."""
    still: float
    """Share by which a loss must fall below its lowest value so far to count as progress."""
    epochs: int
    """Epochs for which neither loss has made progress."""
    start: int
    """First epoch in which it may grow."""

    def __post_init__(self) -> None:
        require(self.gap >= 0, f"gap is {self.gap:g}: it cannot be negative")
        require(0 <= self.still < 1, f"still is {self.still:g}: give a share of at least 0 and below 1")
        require(self.epochs >= 1, f"epochs is {self.epochs}: it must be at least 1")
        require(self.start >= 0, f"start is {self.start}: it cannot be negative")


class GapRule(RulePolicy):
    """Grows one column after another while training and validation loss agree and both stand still.

    Losses that agree say that more capacity would not merely fit noise, losses that stand still say that the model has
    too little of it. A column is kept if it contributes at least what it costs at the price that is observed, or if
    its contribution is unknown; otherwise it is pruned. Without a training loss, the rule does not grow.

    Memory: epoch, lowest validation loss, lowest training loss, epochs without progress of each.
    """

    MEMORY = 5

    def __init__(self, spaces: Spaces, settings: GapSettings) -> None:
        super().__init__(spaces)
        self.settings = settings

    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        epoch = int(memory[0])
        gap = self._remember(model.obs, memory)
        price = self.reader.price(model.obs)[0] * self.reader.sizes(model.obs)[0]
        tended = self._keep_or_prune(model, self.reader.points(model.obs)[0] < price) or self._advance(model, 1)
        if tended is not None:
            memory[3:5] = 0
            return tended
        growing = any(Stage.GERMINATED <= stage < Stage.FOSSILIZED for stage in model.stages)
        stands = memory[3:5].min() >= self.settings.epochs
        if growing or epoch < self.settings.start or not stands or not gap <= self.settings.gap:
            return WAIT
        for slot in model.germinable(self.settings.blueprint):
            memory[3:5] = 0
            return choices(Op.GERMINATE, slot, self.settings.blueprint, target=AVERAGE, speed=1)
        return WAIT

    def _remember(self, obs: NDArray[np.float32], memory: NDArray[np.float32]) -> float:
        """Update the memory; return validation loss - training loss, NaN if it is unknown."""
        losses = [float(self.reader.relative_loss(obs, name)[0]) for name in ("loss", "train_loss")]
        if not self.reader.base(obs, "train_loss_known")[0, 0]:
            losses[1] = np.nan
        for i, loss in enumerate(losses):
            lowest = memory[1 + i]
            better = not lowest or loss < lowest * (1.0 - self.settings.still)
            memory[3 + i] = 0 if better else memory[3 + i] + 1
            if better:
                memory[1 + i] = 0.0 if np.isnan(loss) else loss
        memory[0] += 1
        return losses[0] - losses[1]
