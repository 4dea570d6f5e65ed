"""`TrialTeacher`: starts a trial where a regression expects it to pay, and gives it up where it no longer does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from actors.blueprints.family import blueprint_index
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rules.reader import ObservationReader
from actors.rules.rule import AVERAGE, INSTANT, WAIT, ModelState, RulePolicy, choices
from actors.slots.slot_shape import SlotKind
from actors.slots.stage import Stage
from actors.types.actions import ActionMasks, Op
from actors.types.spaces import Spaces

SIZES = ("same", "double", "quad")
"""Columns that are tried, one in an episode."""
LOOK = 1
"""The epoch in which a trial starts, so that the host was seen untrained and after one epoch."""
LEFT = 1
"""Epochs before the end in which it is decided."""
MODEL = (
    "time", "horizon", "chance", "loss", "accuracy", "accuracy_known", "train_loss", "train_loss_known", "overfit",
    "price", "compute_price", "compute", "host_params", "train_rows", "params_per_row", "val_rows",
)  # fmt: skip
COLUMN = ("contribution", "contribution_velocity", "size", "effort", "gradient_norm", "epochs_in_stage")
"""Features of the observation that the regressions read: of the model, and of the column that is tried."""


def model_features(reader: ObservationReader, obs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what is known before a trial, `[N, F]` of observations `[N, D]`."""
    columns = reader.slot(obs, "kind")[:, :, SlotKind.COLUMN] > 0
    first = reader.slot(obs, "costs")[np.arange(len(obs)), columns.argmax(1)]
    return np.concatenate([*(reader.base(obs, name) for name in MODEL), first], axis=1)


def trial_features(
    reader: ObservationReader, obs: NDArray[np.float32], slots: NDArray[np.int64], mean: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return what is known within a trial, `[N, F]`: of the column in `slots [N]`, whose contributions so far have a
    `mean [N]`."""
    rows = np.arange(len(obs))
    column = [reader.slot(obs, name)[rows, slots] for name in COLUMN]
    return np.concatenate([*(reader.base(obs, name) for name in MODEL), *column, mean[:, None]], axis=1)


@dataclass(frozen=True)
class Judgement:
    """What the teacher expects, in points."""

    start: Sequence[ExtraTreesRegressor]  # of each of SIZES: J over never growing, from `model_features`
    worth: ExtraTreesRegressor  # of going on: the gain at the end less the price of the model, from `trial_features`
    join: ExtraTreesRegressor  # of joining now: the gain less the price of the model, from `trial_features`


class TrialTeacher(RulePolicy):
    """Looks at a host for one epoch, then lets a column learn in isolation, or none.

    Each epoch it gives the column up if what it expects from it is below the price of training it to the end. Near the
    end the column joins if it is expected to pay. Memory: 1 + the number of the size that is tried, -1 for none; the
    sum of the contributions measured so far, and their number.
    """

    MEMORY = 3

    def __init__(self, spaces: Spaces, judgement: Judgement | None, size: int = -1, temperature: float = 0.0) -> None:
        """Without a judgement, a column of the size of this number is tried to the end, and joins.

        With a `temperature` in points, the probability of each size, and of none, is proportional to
        exp(expected J / temperature).
        """
        super().__init__(spaces)
        self.judgement, self.size, self.temperature = judgement, size, temperature
        self._blueprints = [blueprint_index(f"column_{name}") for name in SIZES]

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        """See `RulePolicy.act`; the regressions are asked about all rows at once."""
        stages = self.reader.slot(obs, "stage").argmax(-1)
        slots = np.isin(stages, (Stage.GERMINATED, Stage.TRAINING)).argmax(1)
        memory = state.h[0].numpy().copy()
        known, points = self.reader.slot(obs, "contribution")[np.arange(len(obs)), slots].T
        memory[:, 1] += known * points
        memory[:, 2] += known
        self._start, self._worth, self._join = self._judge(obs, slots, stages, memory)
        self._slots = slots
        return super().act(obs, blueprint_indices, masks, state._replace(h=state.h.new_tensor(memory)[None]), noise)

    def _judge(
        self, obs: NDArray[np.float32], slots: NDArray[np.int64], stages: NDArray[np.int64], memory: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], ...]:
        """Return the expected J of each size `[N, sizes]`, of going on `[N]` and of joining `[N]`."""
        n = len(obs)
        start, worth, join = np.zeros((n, len(SIZES))), np.zeros(n), np.zeros(n)
        if (judgement := self.judgement) is None:
            start[:, self.size], join[:] = 1.0, 1.0
            return start, worth, join
        epoch, left = self._epochs(obs)
        deciding, trying = epoch == LOOK, stages[np.arange(n), slots] == Stage.TRAINING
        if deciding.any():
            features = model_features(self.reader, obs[deciding])
            start[deciding] = np.stack([forest.predict(features) for forest in judgement.start], axis=1)
        if trying.any():
            seen = trial_features(self.reader, obs, slots, mean_contribution(memory))
            effort = 4.0 * self.reader.slot(obs, "effort")[np.arange(n), slots, 0]
            going_on, ending = trying & (left > LEFT), trying & (left <= LEFT)
            if going_on.any():
                worth[going_on] = judgement.worth.predict(seen[going_on])
                worth[going_on] -= (self.reader.compute_price(obs) * effort)[going_on]
            if ending.any():
                join[ending] = judgement.join.predict(seen[ending])
        return start, worth, join

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
        if number <= 0 or stage not in (Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING):
            return WAIT
        if stage == Stage.DORMANT:
            free = model.germinable(self._blueprints[number - 1])
            if epoch > LOOK or not free:
                return WAIT
            return choices(Op.GERMINATE, free[0], self._blueprints[number - 1], target=AVERAGE, speed=INSTANT)
        if stage == Stage.TRAINING and (self._worth[row] < 0 if left > LEFT else self._join[row] <= 0):
            return choices(Op.PRUNE, slot, speed=INSTANT)
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


def mean_contribution(memory: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of the contributions so far, `[N]` of memories `[N, 3]`; 0 without any."""
    return np.asarray(memory[:, 1] / np.maximum(memory[:, 2], 1.0), dtype=np.float32)
