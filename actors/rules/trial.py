"""`TrialRule`: let columns learn in isolation, then keep the one that pays, or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actors.config import require
from actors.rules.rule import AVERAGE, INSTANT, WAIT, ModelState, RulePolicy, choices
from actors.slots.stage import Stage
from actors.types.actions import Op
from actors.types.spaces import Spaces


@dataclass(frozen=True)
class Trial:
    """When `TrialRule` grows, and what."""

    blueprints: tuple[int, ...]
    """Indices of column blueprints, one column each."""
    start: int
    """First epoch in which a column may germinate."""
    left: int
    """Epochs before the end of the training at which the trial is decided."""
    alpha_target: int = AVERAGE
    """Index of the alpha target at which a column joins. Until the model overfits, its column learns what the model
    leaves at this alpha."""
    surrender: float | None = None
    """Share of its price that a column must contribute from half way on; otherwise it is pruned. None waits."""

    def __post_init__(self) -> None:
        require(bool(self.blueprints), "a trial needs at least one column")
        share = self.surrender
        require(share is None or 0.0 <= share < np.inf, f"surrender is {share}: it must be a number of at least 0")
        require(self.left >= 1, f"a trial is decided {self.left} epochs before the end: it must be at least 1")

    def decides(self, horizon_epochs: int) -> int:
        """Return the epoch in which the trial is decided."""
        return max(self.start, horizon_epochs - self.left)

    def half_way(self, horizon_epochs: int) -> int:
        """Return the epoch from which on no column begins, and those that contribute too little are given up."""
        return self.start + (self.decides(horizon_epochs) - self.start + 1) // 2

    def reads_contributions(self, epoch: int, horizon_epochs: int) -> bool:
        """Return whether contributions matter in this epoch: to the rule, or to gates that let its column be kept."""
        return epoch >= (self.decides(horizon_epochs) if self.surrender is None else self.half_way(horizon_epochs))


class TrialRule(RulePolicy):
    """Grows columns that learn in isolation from an early epoch on, and decides about them near the end.

    The column whose contribution exceeds the price of the doublings that it adds by most joins at once; the others are
    pruned. Without contributions or a known horizon nothing joins. Memory: whether the trial is decided.
    """

    MEMORY = 1

    def __init__(self, spaces: Spaces, trial: Trial) -> None:
        super().__init__(spaces)
        self.trial = trial

    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        horizon = int(self.reader.horizon_epochs(model.obs)[0])
        epoch = round(float(self.reader.base(model.obs, "time")[0, 0]) * horizon)
        if not horizon or epoch < self.trial.start:
            return WAIT
        if epoch < self.trial.decides(horizon):
            return self._begin(model) if epoch < self.trial.half_way(horizon) else self._surrender(model)
        if not memory[0]:
            memory[0] = 1
            if (best := self._best(model)) is not None:
                return choices(Op.ADVANCE, best)
        return self._end(model)

    def _begin(self, model: ModelState) -> list[int]:
        """Germinate the columns that are missing, and let them train."""
        if (trained := self._advance(model)) is not None:
            return trained
        for blueprint in self.trial.blueprints:
            free = model.germinable(blueprint)
            if free and blueprint not in model.blueprints:
                return choices(Op.GERMINATE, free[0], blueprint, target=self.trial.alpha_target, speed=INSTANT)
        return WAIT

    def _surrender(self, model: ModelState) -> list[int]:
        share = self.trial.surrender
        if share is None:
            return WAIT
        least = share * self.reader.price(model.obs)[0] * self.reader.sizes(model.obs)[0]
        return self._prune(model, self.reader.points(model.obs)[0] < least) or WAIT

    def _prune(self, model: ModelState, which: NDArray[np.bool_] | bool) -> list[int] | None:
        """Prune the first column in isolation among `which` `[S]`."""
        isolated = np.isin(model.stages, (Stage.GERMINATED, Stage.TRAINING)) & which
        return choices(Op.PRUNE, int(isolated.argmax()), speed=INSTANT) if isolated.any() else None

    def _best(self, model: ModelState) -> int | None:
        """Return the column in TRAINING that pays most, None if none does."""
        joins = (model.stages == Stage.TRAINING) & [model.legal(Op.ADVANCE, s) for s in range(len(model.stages))]
        points = self.reader.points(model.obs)[0]
        worth = np.where(joins, points - self.reader.price(model.obs)[0] * self.reader.sizes(model.obs)[0], -np.inf)
        worth = np.nan_to_num(worth, nan=-np.inf)
        return int(worth.argmax()) if worth.max() > 0 else None

    def _end(self, model: ModelState) -> list[int]:
        """Prune what has not joined, and keep what has."""
        return self._prune(model, True) or self._keep_or_prune(model) or WAIT
