"""`TrialTeacher`: starts a trial where a regression expects it to pay, and gives it up where it no longer does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from actors.blueprints.family import blueprint_index
from actors.rules.reader import ObservationReader
from actors.rules.rule import AVERAGE, INSTANT, WAIT, ModelState, RulePolicy, choices
from actors.slots.slot_shape import SlotKind
from actors.slots.stage import Stage
from actors.types.actions import Op
from actors.types.spaces import Spaces

SIZES = ("same", "double", "quad")
"""Columns that are tried, one in an episode."""
LOOK = 1
"""The epoch in which a trial starts, so that the host was seen untrained and after one epoch."""
LEFT = 2
"""Epochs before the end in which it is decided: one to join, one to be fossilized."""
MODEL = (
    "time", "horizon", "chance", "loss", "accuracy", "accuracy_known", "train_loss", "train_loss_known", "overfit",
    "price", "compute_price", "compute", "host_params", "train_rows", "params_per_row", "val_rows",
)  # fmt: skip
"""Features of the model that are read before a trial."""
IN_TRIAL = (
    "time", "horizon", "chance", "accuracy", "overfit", "price", "host_params", "train_rows", "params_per_row",
    "val_rows",
)  # fmt: skip
COLUMN = ("contribution", "contribution_velocity", "size", "gradient_norm", "epochs_in_stage")
"""Features that are read within a trial: of the model, and of the column that is tried."""


def model_features(reader: ObservationReader, obs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what is known before a trial, `[N, F]` of observations `[N, D]`."""
    columns = reader.slot(obs, "kind")[:, :, SlotKind.COLUMN] > 0
    first = reader.slot(obs, "costs")[np.arange(len(obs)), columns.argmax(1)]
    return np.concatenate([*(reader.base(obs, name) for name in MODEL), first], axis=1)


def trial_features(
    reader: ObservationReader, obs: NDArray[np.float32], slots: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return what is known within a trial of the columns in `slots [N]`, `[N, F]`."""
    rows = np.arange(len(obs))
    column = [reader.slot(obs, name)[rows, slots] for name in COLUMN]
    return np.concatenate([*(reader.base(obs, name) for name in IN_TRIAL), *column], axis=1)


@dataclass(frozen=True)
class Judgement:
    """What the teacher expects, in points."""

    start: ExtraTreesRegressor  # of each of SIZES: J over never growing, from `model_features`
    worth: ExtraTreesRegressor  # of going on: the gain at the end less the price of the model, from `trial_features`


class TrialTeacher(RulePolicy):
    """Looks at a host for one epoch, then lets a column learn in isolation, or none.

    Each epoch it gives the column up if what it expects from it is below the price of training it to the end. Near the
    end the column joins if its contribution exceeds its price. Memory: 1 + the number of the size that is tried, -1 for
    none.
    """

    MEMORY = 1

    def __init__(self, spaces: Spaces, judgement: Judgement | None, size: int = -1, temperature: float = 0.0) -> None:
        """Without a judgement, a column of the size of this number is tried to the end, and joins.

        With a `temperature` in points, the probability of each size, and of none, is proportional to
        exp(expected J / temperature).
        """
        super().__init__(spaces)
        self.judgement, self.size, self.temperature = judgement, size, temperature
        self._blueprints = [blueprint_index(f"column_{name}") for name in SIZES]

    def _look(self, obs: NDArray[np.float32], stages: NDArray[np.int64]) -> None:
        """Ask the regressions about all models at once."""
        self._slots = np.isin(stages, (Stage.GERMINATED, Stage.TRAINING)).argmax(1)
        self._start, self._worth = self._judge(obs, self._slots, stages)

    def _judge(
        self, obs: NDArray[np.float32], slots: NDArray[np.int64], stages: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the expected J of each size `[N, sizes]`, and of going on `[N]`, near the end of joining."""
        n = len(obs)
        start, worth = np.zeros((n, len(SIZES))), np.zeros(n)
        if (judgement := self.judgement) is None:
            start[:, self.size] = 1.0
            return start, worth
        epoch, left = self._epochs(obs)
        deciding, trying = epoch == LOOK, stages[np.arange(n), slots] == Stage.TRAINING
        worth[left <= LEFT] = worth_now(self.reader, obs, slots)[left <= LEFT]
        if deciding.any():
            start[deciding] = judgement.start.predict(model_features(self.reader, obs[deciding]))
        if (going_on := trying & (left > LEFT)).any():
            seen = trial_features(self.reader, obs, slots)
            effort = 4.0 * self.reader.slot(obs, "effort")[np.arange(n), slots, 0]
            worth[going_on] = judgement.worth.predict(seen[going_on])
            worth[going_on] -= (self.reader.compute_price(obs) * effort)[going_on]
        return start, worth

    def _epochs(self, obs: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the epochs that have passed and that are left, `[N]`."""
        horizon = self.reader.horizon_epochs(obs)
        epoch = np.round(self.reader.base(obs, "time")[:, 0] * horizon).astype(np.int64)
        return epoch, horizon.astype(np.int64) - epoch

    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        row, slot = model.row, int(self._slots[model.row])
        epoch, left = (int(n[0]) for n in self._epochs(model.obs))
        if memory[0] == 0 and epoch == LOOK:
            memory[0] = self._chosen(model, self._start[row])
        number = int(memory[0])
        stage = model.stages[slot]
        for held in np.flatnonzero(model.stages == Stage.HOLDING).tolist():
            return choices(Op.FOSSILIZE, held) if model.legal(Op.FOSSILIZE, held) else WAIT
        if number <= 0 or stage not in (Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING):
            return WAIT
        if stage == Stage.DORMANT:
            free = model.germinable(self._blueprints[number - 1])
            if epoch > LOOK or not free:
                return WAIT
            return choices(Op.GERMINATE, free[0], self._blueprints[number - 1], target=AVERAGE, speed=INSTANT)
        if stage == Stage.TRAINING and self._worth[row] < 0:
            return choices(Op.PRUNE, slot, speed=INSTANT) if model.legal(Op.PRUNE, slot) else WAIT
        if (stage == Stage.GERMINATED or left <= LEFT) and model.legal(Op.ADVANCE, slot):
            return choices(Op.ADVANCE, slot)
        return WAIT

    def _chosen(self, model: ModelState, expected: NDArray[np.float64]) -> int:
        """Return 1 + the number of a size, or -1 for none."""
        legal = [bool(model.germinable(blueprint)) for blueprint in self._blueprints]
        worth = np.append(np.where(legal, expected, -np.inf), 0.0)
        if self.temperature:
            odds = np.exp((worth - worth.max()) / self.temperature).cumsum()
            best = int((odds < model.noise[0] * odds[-1]).sum())
        else:
            best = int(worth.argmax())
        return best + 1 if best < len(SIZES) else -1


def worth_now(reader: ObservationReader, obs: NDArray[np.float32], slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what the columns in `slots [N]` contribute less the price of the model with them, `[N]` points."""
    rows = np.arange(len(obs))
    points = np.nan_to_num(reader.points(obs)[rows, slots])
    return np.asarray(points - reader.price(obs) * reader.sizes(obs)[rows, slots])
