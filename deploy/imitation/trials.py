"""`TrialTeacher`: starts a trial where a regression expects it to pay, and gives up columns that no longer do."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from actors.blueprints.family import blueprint_index
from actors.rules.reader import ObservationReader
from actors.rules.rule import INSTANT, WAIT, ModelState, RulePolicy, choices
from actors.slots.stage import Stage
from actors.types.actions import ALPHA_TARGETS, Op
from actors.types.spaces import Spaces

SIZES = ("double", "quad")
"""Columns that are tried."""
TARGET = ALPHA_TARGETS.index(0.7)
"""Their alpha target: a wider column has more to say than the host."""
TRIALS = ((0,), (1,), (1, 0))
"""The sizes, as indices into `SIZES`, that are tried in one episode, in the order in which they start. The teacher
makes the last one, or none: where the policy could also learn from one column alone, near ties were coin flips to it,
and it lost more by what it then had not tried than the second column costs."""
LOOK = 1
"""The epoch in which a trial starts that costs something, so that the host was seen untrained and after one epoch.
Where compute is free, both columns are tried from the first epoch on: they cost nothing until one joins."""
BETWEEN = 2
"""Epochs between the starts of two columns: one to germinate, one to begin its training."""
LEFT = 2
"""Epochs before the end in which it is decided: one to join, one to be fossilized or for a second column to join."""
CERTAIN = 100.0  # points: expected of a trial that is made in any case
MARGIN = 1.0
"""Points by which a contribution must exceed its price for a column to join. What a column contributes is measured on
few rows and the best of two is looked at, so that it is overestimated on average."""
MODEL = (
    "time", "horizon", "chance", "loss", "accuracy", "accuracy_known", "train_loss", "train_loss_known", "overfit",
    "price", "compute_price", "compute", "val_rows",
)  # fmt: skip
"""Features of the model that are read before a trial. What a column costs, relative to the model, is not among them: it
tells how wide an MLP is, and models of practical size would look like the widest ones, which gain least."""
IN_TRIAL = (
    "time", "horizon", "chance", "accuracy", "overfit", "price", "val_rows",
)  # fmt: skip
COLUMN = ("contribution", "contribution_velocity", "size", "gradient_norm", "epochs_in_stage")
"""Features that are read within a trial: of the model, and of the column that is tried."""
DESIGN = (SIZES, TARGET, TRIALS, LOOK, BETWEEN, LEFT, MARGIN, MODEL, IN_TRIAL, COLUMN)
"""All that a survey depends on."""


def model_features(reader: ObservationReader, obs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what is known before a trial, `[N, F]` of observations `[N, D]`."""
    return np.concatenate([reader.base(obs, name) for name in MODEL], axis=1)


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

    start: ExtraTreesRegressor  # of the trial: its J over never growing, from `model_features`
    worth: ExtraTreesRegressor  # of going on with a column: its gain less its price at the end, from `trial_features`


class TrialTeacher(RulePolicy):
    """Looks at a host for one epoch, then lets both columns learn in isolation, or none; where compute is free, both
    from the first epoch on.

    From half of the trial on it gives up a column if what it expects from it is below the price of training it to the
    end. Where compute is free it gives up none, since a column need not join. Near the end the column joins whose
    contribution exceeds its price by most, if by at least `MARGIN`, and then the other one, if what it contributes to
    the model with the first does. Memory: 1 + the number of the trial, -1 for none.
    """

    MEMORY = 1

    def __init__(
        self, spaces: Spaces, judgement: Judgement | None, trial: int = len(TRIALS) - 1, temperature: float = 0.0
    ) -> None:
        """Without a judgement, the trial of this number is made and nothing given up; a column that is alone joins.

        With a `temperature` in points, the odds of a trial are exp(expected J / temperature).
        """
        super().__init__(spaces)
        self.judgement, self.trial, self.temperature = judgement, trial, temperature
        self._blueprints = [blueprint_index(f"column_{name}") for name in SIZES]

    def _look(self, obs: NDArray[np.float32], stages: NDArray[np.int64]) -> None:
        """Ask the regressions about all models at once."""
        horizon = self.reader.horizon_epochs(obs)
        self._epoch = np.round(self.reader.base(obs, "time")[:, 0] * horizon).astype(np.int64)
        self._left = horizon.astype(np.int64) - self._epoch
        free = self.reader.compute_price(obs) == 0
        self._first = np.where(free, 0, LOOK)
        self._expected = np.full(len(obs), CERTAIN)
        if self.judgement is not None and (deciding := (self._epoch == LOOK) & ~free).any():
            self._expected[deciding] = self.judgement.start.predict(model_features(self.reader, obs[deciding]))
        self._worth = self._going_on(obs, stages)

    def _going_on(self, obs: NDArray[np.float32], stages: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the expected J of going on with what is in each slot, near the end of letting it join, `[N, S]`."""
        if self.judgement is None and len(TRIALS[self.trial]) == 1:
            return np.zeros(stages.shape)
        ending = (self._left <= LEFT)[:, None]
        worth = np.where(ending, worth_now(self.reader, obs) - MARGIN, 0.0)
        rows, slots = np.nonzero(~ending & (stages == Stage.TRAINING))
        if self.judgement is not None and len(rows):
            expected = self.judgement.worth.predict(trial_features(self.reader, obs[rows], slots)).clip(min=0.0)
            cost = self.reader.compute_price(obs)[rows] * 4.0 * self.reader.slot(obs, "effort")[rows, slots, 0]
            early = self.reader.epochs_in_stage(obs)[rows, slots] < self._left[rows] - LEFT - 0.5
            worth[rows, slots] = np.where(early, 0.0, expected - cost)
        return worth

    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        row, stages = model.row, model.stages
        first = self._first[row]
        if memory[0] == 0 and self._epoch[row] == first:
            memory[0] = self._chosen(model, float(self._expected[row]))
        if memory[0] <= 0:
            return WAIT
        if (trained := self._advance(model)) is not None:
            return trained
        for i, size in enumerate(TRIALS[int(memory[0]) - 1]):
            if self._epoch[row] == first + i * BETWEEN and (free := model.germinable(self._blueprints[size])):
                return choices(Op.GERMINATE, free[0], self._blueprints[size], target=TARGET, speed=INSTANT)
        training = stages == Stage.TRAINING
        worth = np.where(training, self._worth[row], -np.inf)
        best = int(worth.argmax())
        if self._left[row] <= LEFT and worth[best] >= 0 and model.legal(Op.ADVANCE, best):
            return choices(Op.ADVANCE, best)
        for held in np.flatnonzero(stages == Stage.HOLDING).tolist():
            return choices(Op.FOSSILIZE, held) if model.legal(Op.FOSSILIZE, held) else WAIT
        for slot in np.flatnonzero(training & (worth < 0)).tolist():
            if model.legal(Op.PRUNE, slot):
                return choices(Op.PRUNE, slot, speed=INSTANT)
        return WAIT

    def _chosen(self, model: ModelState, expected: float) -> int:
        """Return 1 + the number of the trial that is made, or -1 for none. Where slots or the budget leave no room for
        that of `self.trial`, it is the last one before it for which they do."""
        probability = 1.0 / (1.0 + exp(-expected / self.temperature)) if self.temperature else float(expected > 0)
        if model.noise[0] >= probability:
            return -1
        room = [len(model.germinable(blueprint)) for blueprint in self._blueprints]  # slots
        fits = [min(room[size] for size in trial) >= len(trial) for trial in TRIALS[: self.trial + 1]]
        return int(np.flatnonzero(fits)[-1]) + 1 if any(fits) else -1


def worth_now(reader: ObservationReader, obs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what the column in each slot contributes less the price of the model with it, `[N, S]` points."""
    return np.nan_to_num(reader.points(obs)) - reader.price(obs)[:, None] * reader.sizes(obs)
