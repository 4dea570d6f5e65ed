"""`RulePolicy`: the base of policies that follow a rule, with the interface of the learned policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import require
from actors.policy.baselines import rule_output
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState, StateSizes
from actors.rules.reader import ObservationReader
from actors.slots.stage import Stage
from actors.types.actions import ALPHA_TARGETS, ActionMasks, Op
from actors.types.spaces import Spaces

AVERAGE = ALPHA_TARGETS.index(0.5)
"""Index of the alpha target at which a column is the model's equal."""
INSTANT = 0
"""Index of the alpha speed that acts at once."""


class ModelState(NamedTuple):
    """What a rule sees of one model."""

    row: int
    obs: NDArray[np.float32]  # [1, D]
    stages: NDArray[np.int64]  # [S]
    blueprints: NDArray[np.int64]  # [S], -1 where there is no seed
    masks: ActionMasks  # of all rows
    noise: NDArray[np.float64]  # [H]

    def legal(self, op: Op, slot: int) -> bool:
        """Return whether an op is legal in a slot."""
        assert self.masks.slot is not None
        return bool(self.masks.slot[self.row, op, slot])

    def germinable(self, blueprint: int) -> list[int]:
        """Return the slots in which such a seed can be germinated now."""
        assert self.masks.slot is not None
        legal = self.masks.slot[self.row, Op.GERMINATE] & self.masks.rest[self.row, Op.GERMINATE, :, blueprint]
        slots: list[int] = np.flatnonzero(legal).tolist()
        return slots


class RulePolicy(ABC):
    """A policy that chooses by a rule. Its recurrent state is `MEMORY` numbers per model, zero at the start."""

    MEMORY: int

    def __init__(self, spaces: Spaces) -> None:
        """Raise `ConfigError` for spaces that lack ops which rules use."""
        require(
            spaces.slots > 0 and spaces.action.num_ops == len(Op),
            "rules need slots and env.profile tamiyo, whose ops they choose",
        )
        self.spaces, self.reader = spaces, ObservationReader(spaces)

    @property
    def state_sizes(self) -> StateSizes:
        return StateSizes(h=(1, self.MEMORY))

    def initial_state(self, batch: int) -> PolicyState:
        return PolicyState.zeros(self.state_sizes, batch)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        memory = state.h[0].cpu().numpy().copy()
        actions = np.zeros((len(obs), len(self.spaces.action.heads)), dtype=np.int64)
        stages = self.reader.slot(obs, "stage").argmax(-1)
        self._look(obs, stages)
        for row in range(len(obs)):
            model = ModelState(row, obs[row : row + 1], stages[row], blueprint_indices[row], masks, noise[row])
            actions[row] = self._choose(model, memory[row])
        return rule_output(self.spaces, actions, masks), state._replace(h=torch.from_numpy(memory)[None])

    def _look(self, obs: NDArray[np.float32], stages: NDArray[np.int64]) -> None:  # noqa: B027 - few rules need it
        """Look at all models at once, `[N, D]` and `[N, S]`, before `_choose` is called for each of them."""

    @abstractmethod
    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        """Return the action `[H]` for one model, and update `memory` in place."""

    def _advance(self, model: ModelState, training_epochs: float = np.inf) -> list[int] | None:
        """Return what takes a seed to its next stage, the most advanced seed first, or None. Seeds in HOLDING stay."""
        in_stage = self.reader.epochs_in_stage(model.obs)[0]
        for slot in np.argsort(-model.stages, kind="stable").tolist():
            stage = model.stages[slot]
            due = stage == Stage.GERMINATED or (stage == Stage.TRAINING and in_stage[slot] >= training_epochs - 0.5)
            if due and model.legal(Op.ADVANCE, slot):
                return choices(Op.ADVANCE, slot)
        return None

    def _keep_or_prune(self, model: ModelState, poor: NDArray[np.bool_] | None = None) -> list[int] | None:
        """Return the decision about a seed in HOLDING, the first one; those that are `poor` `[S]` are pruned."""
        for slot in np.flatnonzero(model.stages == Stage.HOLDING).tolist():
            if poor is not None and poor[slot]:
                return choices(Op.PRUNE, slot, speed=INSTANT)
            if model.legal(Op.FOSSILIZE, slot):
                return choices(Op.FOSSILIZE, slot)
        return None


def choices(op: Op, slot: int = 0, blueprint: int = 0, blend: int = 0, target: int = 0, speed: int = 0) -> list[int]:
    """Return an action as one choice per head; see `SeedAction`."""
    return [int(op), slot, blueprint, blend, target, speed]


WAIT = choices(Op.WAIT)
