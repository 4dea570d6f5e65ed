"""`Schedule`: a rule with a few numbers that says when seeds are germinated, and `Scheduled`, which follows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actors.config import require
from actors.rules.rule import AVERAGE, INSTANT, WAIT, ModelState, RulePolicy, choices
from actors.types.actions import Op
from actors.types.spaces import Spaces

SIZES = {"half": 0.5, "same": 1.0, "double": 2.0, "quad": 4.0}
"""Columns by name: their width in widths of the model."""


@dataclass(frozen=True)
class Schedule:
    """A rule that germinates a seed every `wait` epochs from `start` on."""

    start: int
    """First epoch in which it may germinate; if negative, counted back from the end of the training."""
    wait: int
    """Epochs between germinations."""
    seeds: int
    """Largest number of seeds; 0 never grows."""
    blueprint: int
    """Index of the blueprint; a column grows in the first free column slot, others in the first free slot of the
    stream."""
    blend: int
    alpha_target: int
    alpha_speed: int
    """Indices of the heads' choices."""
    training: int
    """Epochs in TRAINING before the seed is blended in."""
    keep_above: float | None = None
    """Points that a seed must contribute to be fossilized; otherwise it is pruned. None keeps all seeds."""

    def __post_init__(self) -> None:
        require(self.wait >= 1, f"a schedule waits {self.wait} epochs: it must be at least 1")
        require(self.seeds >= 0, f"a schedule grows {self.seeds} seeds: the number cannot be negative")
        require(self.training >= 1, f"a schedule trains for {self.training} epochs: it must be at least 1")

    def start_in(self, horizon_epochs: int) -> int | None:
        """Return the first epoch in a training of so many epochs, 0 if that is unknown; None if it never starts."""
        if self.start >= 0:
            return self.start
        return max(0, horizon_epochs + self.start) if horizon_epochs else None


NEVER = Schedule(0, 1, 0, 1, 0, 2, 0, 1)


def fixed_column(blueprint: int, epoch: int, columns: int = 1) -> Schedule:
    """Return the schedule that grows equal columns from an epoch on, and keeps them. A column learns for one epoch
    before it joins, as the average of the model and the column: over three epochs or, if the epoch is negative and thus
    counted back from the end of the training, at once."""
    wait, alpha_speed = (1 << 20 if columns == 1 else 1), (INSTANT if epoch < 0 else 1)
    return Schedule(epoch, wait, columns, blueprint, 0, AVERAGE, alpha_speed, 1)


class Scheduled(RulePolicy):
    """Follows a schedule. Memory: the epoch."""

    MEMORY = 1

    def __init__(self, spaces: Spaces, schedule: Schedule) -> None:
        super().__init__(spaces)
        self.schedule = schedule

    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        plan, obs, epoch = self.schedule, model.obs, int(memory[0])
        memory[0] += 1
        poor = None if plan.keep_above is None else ~(self.reader.points(obs)[0] >= plan.keep_above)
        next_stage = self._keep_or_prune(model, poor) or self._advance(model, plan.training)
        if next_stage is not None:
            return next_stage
        active = int(self.reader.slot(obs, "active").sum())
        start = plan.start_in(int(self.reader.horizon_epochs(obs)[0]))
        if active >= plan.seeds or start is None or epoch < start or (epoch - start) % plan.wait:
            return WAIT
        for slot in model.germinable(plan.blueprint):
            return choices(Op.GERMINATE, slot, plan.blueprint, plan.blend, plan.alpha_target, plan.alpha_speed)
        return WAIT
