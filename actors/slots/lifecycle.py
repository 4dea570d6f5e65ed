"""`Lifecycle`: the stage machine of all slots of one model. Which actions are legal, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.config import require
from actors.slots.stage import Ramp, Slot, Stage
from actors.types.actions import ALPHA_SPEEDS_EPOCHS, ALPHA_TARGETS, BLENDS, PROFILES, ActionMasks, Op

LEGAL_STAGES: dict[Op, frozenset[Stage]] = {
    Op.GERMINATE: frozenset({Stage.DORMANT}),
    Op.SET_ALPHA_TARGET: frozenset({Stage.BLENDING, Stage.HOLDING}),
    Op.PRUNE: frozenset({Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING}),
    Op.FOSSILIZE: frozenset({Stage.HOLDING}),
    Op.ADVANCE: frozenset({Stage.GERMINATED, Stage.TRAINING}),
}
"""Stages in which an op can be legal. Gates, the budget and an alpha that falls to 0 restrict it further."""

LEGAL_OPS = {stage: [op for op, stages in LEGAL_STAGES.items() if stage in stages] for stage in Stage}

EMBARGO_EPOCHS = 2
"""Epochs before the slot of a pruned seed can be used again."""


class IllegalAction(ValueError):
    """An action that the masks, or the stage of its slot, forbid."""


@dataclass(frozen=True)
class SeedAction:
    """One action of the seed-training environment: one choice per head, as indices into the tables of
    `actors.types.actions`. Heads that `op` does not use stay at 0.

    `env.step` accepts it in place of an array. NumPy converts it to an element of the action space
    (`np.asarray(action)`), so that a list of actions is a batch for a vector environment.
    """

    op: Op
    slot: int = 0
    """Index of the slot."""
    blueprint: int = 0
    """Index of the blueprint; `blueprint_index` gives it by name."""
    blend: int = 0
    """0 add, 1 multiply, 2 gated. In a column slot only 0 is legal."""
    alpha_target: int = 0
    """0, 1 and 2 are targets of 0.5, 0.7 and 1.0."""
    alpha_speed: int = 0
    """0 is instant; 1, 2 and 3 are ramps of 3, 5 and 8 epochs."""

    def as_array(self, profile: str = "tamiyo") -> NDArray[np.int64]:
        """Return one choice per head of the profile: an element of the environment's action space.

        Raises `ConfigError` if the profile does not have the op.
        """
        known = PROFILES[profile]
        require(self.op in known.ops, f"{self.op.name} is not an op of the profile {profile!r}")
        return np.array([known.ops.index(self.op), *(getattr(self, head) for head in known.heads)], dtype=np.int64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.as_array().astype(dtype or np.int64)


@dataclass(frozen=True)
class Gates:
    """The evidence that ADVANCE and FOSSILIZE need."""

    germinated_epochs: int  # epochs in GERMINATED before TRAINING
    trained_epochs: int  # epochs in TRAINING before BLENDING
    gradient_health: float  # least gradient health before BLENDING
    held_epochs: int  # epochs in HOLDING before FOSSILIZED
    positive_contribution: bool  # FOSSILIZED needs one above 0, measured in the last epoch
    measured_contribution: bool = True  # FOSSILIZED needs some contribution
    prune: bool = True  # whether PRUNE is legal at all

    def without_contributions(self) -> Gates:
        """Return these gates for a model whose contributions cannot be measured."""
        return replace(self, positive_contribution=False, measured_contribution=False)

    def may_train(self, slot: Slot) -> bool:
        return slot.epochs_in_stage >= self.germinated_epochs

    def may_blend(self, slot: Slot) -> bool:
        health = slot.gradient_health
        return slot.trained_epochs >= self.trained_epochs and health is not None and health >= self.gradient_health

    def may_fossilize(self, slot: Slot) -> bool:
        if not slot.at_target or slot.epochs_in_stage < self.held_epochs:
            return False
        if slot.contribution is None:
            return not self.measured_contribution
        return not self.positive_contribution or (slot.epochs_since_contribution == 0 and slot.contribution > 0)


GATES = {"permissive": Gates(0, 1, 0.5, 0, False), "strict": Gates(1, 3, 0.9, 2, True)}


class Lifecycle:
    """The slots of one model and their stages.

    Each epoch: `apply` an action that `masks` allows, `tick_alpha`, train, then `automatic_transitions`. With
    `automatic_advance`, seeds advance without an action as soon as the gates permit.
    """

    def __init__(
        self,
        columns: Sequence[bool],
        gates: Gates,
        automatic_advance: bool = False,
        may_join: Callable[[int], bool] = lambda slot: True,
    ) -> None:
        """`columns [S]` says which slots hold columns; `may_join(slot)` whether the model has room for that seed."""
        self.slots = [Slot() for _ in columns]
        self.columns = tuple(columns)
        self.gates = gates
        self.automatic_advance, self.may_join = automatic_advance, may_join

    @property
    def replaced(self) -> bool:
        """Whether a column has taken the model's place for good. The stream then no longer exists."""
        return any(self.replaces(s) for s, column in enumerate(self.columns) if column)

    def replaces(self, s: int) -> bool:
        """Whether a slot holds a column that has taken the model's place for good."""
        slot = self.slots[s]
        return self.columns[s] and slot.stage is Stage.FOSSILIZED and slot.alpha == 1.0

    def masks(self, affordable: Sequence[tuple[bool, ...]]) -> ActionMasks:
        """Return the legal choices.

        `affordable` says for each slot which blueprints, without NOOP, the budgets permit.
        """
        replaced = self.replaced
        return _masks(tuple([self._legal(s, blueprints, replaced) for s, blueprints in enumerate(affordable)]))

    def _legal(self, s: int, affordable: tuple[bool, ...], replaced: bool) -> LegalChoices:
        slot = self.slots[s]
        ops = list[Op]()
        for op in () if slot.pruning else LEGAL_OPS[slot.stage]:
            match op:
                case Op.GERMINATE:
                    permitted = (self.columns[s] or not replaced) and any(affordable)
                case Op.PRUNE:
                    permitted = self.gates.prune
                case Op.FOSSILIZE:
                    permitted = self.gates.may_fossilize(slot)
                case Op.ADVANCE:
                    permitted = self._may_advance(s)
                case _:
                    permitted = True
            if permitted:
                ops.append(op)
        return LegalChoices(tuple(ops), affordable, self.columns[s], slot.alpha_target)

    def apply(self, action: SeedAction) -> bool:
        """Apply an action that the masks allow; return whether it had an effect (WAIT always has).

        With `automatic_advance`, seeds advance first: a seed joins in the epoch from which on it is part of the model.
        Raise `IllegalAction` for an op that the stage of the slot does not permit.
        """
        for s, seed in enumerate(self.slots):
            if self.automatic_advance and self._may_advance(s):
                self._advance(seed)
        if action.op is Op.WAIT:
            return True
        slot = self.slots[action.slot]
        if not _possible(action.op, slot):
            ramp = ", which is being pruned" if slot.pruning else ""
            raise IllegalAction(f"{action.op.name} is not possible in stage {slot.stage.name}{ramp}")
        before = (slot.stage, slot.alpha_target, slot.pruning)
        speed_epochs = ALPHA_SPEEDS_EPOCHS[action.alpha_speed]
        match action.op:
            case Op.GERMINATE:
                slot.move_to(Stage.GERMINATED)
                slot.blueprint, slot.blend = action.blueprint, action.blend
                slot.alpha_target = ALPHA_TARGETS[action.alpha_target]
                slot.alpha_speed_epochs = speed_epochs
            case Op.ADVANCE:
                self._advance(slot)
            case Op.SET_ALPHA_TARGET:
                if slot.stage is Stage.HOLDING:
                    slot.move_to(Stage.BLENDING)
                self._ramp(slot, ALPHA_TARGETS[action.alpha_target], speed_epochs)
            case Op.PRUNE if slot.alpha == 0.0 or speed_epochs == 0:
                slot.move_to(Stage.PRUNED)
            case Op.PRUNE:
                if slot.stage is Stage.HOLDING:
                    slot.move_to(Stage.BLENDING)
                slot.pruning = True
                self._ramp(slot, 0.0, speed_epochs)
            case Op.FOSSILIZE:
                slot.move_to(Stage.FOSSILIZED)
                if self.replaces(action.slot):
                    self._retire(slot)
        return (slot.stage, slot.alpha_target, slot.pruning) != before

    def _may_advance(self, s: int) -> bool:
        slot = self.slots[s]
        if slot.stage is Stage.GERMINATED:
            return self.gates.may_train(slot)
        return slot.stage is Stage.TRAINING and self.gates.may_blend(slot) and self.may_join(s)

    def _advance(self, slot: Slot) -> None:
        if slot.stage is Stage.GERMINATED:
            slot.move_to(Stage.TRAINING)
        else:
            slot.move_to(Stage.BLENDING)
            slot.ramp = Ramp(0.0, slot.alpha_target, slot.alpha_speed_epochs)
            slot.joined = 1 + max(other.joined for other in self.slots)

    def _retire(self, column: Slot) -> None:
        """Remove the seeds of the model that a column replaces: all in the stream, and columns that joined before."""
        for slot, other in zip(self.slots, self.columns, strict=True):
            if slot.active and (not other or 0 < slot.joined < column.joined):
                slot.move_to(Stage.PRUNED)

    @staticmethod
    def _ramp(slot: Slot, target: float, epochs: int) -> None:
        slot.ramp = Ramp(slot.alpha, target, epochs)
        slot.alpha_target, slot.alpha_speed_epochs = target, epochs

    def tick_alpha(self) -> None:
        """Advance every alpha by one epoch. Call it before the epoch is trained."""
        for slot in self.slots:
            if slot.stage is Stage.BLENDING and slot.ramp is not None:
                slot.ramp.done = min(slot.ramp.done + 1, slot.ramp.epochs)

    def automatic_transitions(self) -> None:
        """Take the transitions that need no action, and age every slot by an epoch. Call it after training."""
        for slot in self.slots:
            rested = slot.epochs_in_stage >= (EMBARGO_EPOCHS if slot.stage is Stage.EMBARGOED else 1)
            if slot.stage is Stage.BLENDING and slot.at_target:
                slot.move_to(Stage.PRUNED if slot.pruning else Stage.HOLDING)
            elif slot.stage >= Stage.PRUNED and rested:
                slot.move_to(Stage((slot.stage + 1) % len(Stage)))  # the next one; DORMANT follows the last
            slot.epochs_in_stage += 1
            slot.age_epochs += slot.active

    def prune_live(self) -> None:
        """Prune every seed that is not fossilized, at once (after a panic of the governor)."""
        for slot in self.slots:
            if slot.active and slot.stage is not Stage.FOSSILIZED:
                slot.move_to(Stage.PRUNED)


def _possible(op: Op, slot: Slot) -> bool:
    return op in LEGAL_OPS[slot.stage] and not slot.pruning


class LegalChoices(NamedTuple):
    """What is legal for one slot."""

    ops: tuple[Op, ...]
    affordable: tuple[bool, ...]  # by blueprint, without NOOP
    column: bool  # whether the slot is for a column, which has no choice of a blend
    alpha_target: float


@lru_cache(maxsize=4096)
def _masks(legal: tuple[LegalChoices, ...]) -> ActionMasks:
    """Build the masks of these slots. They are read-only and cached, since the same situations recur."""
    num_blueprints = 1 + len(legal[0].affordable)
    sections = np.cumsum([0, num_blueprints, len(BLENDS), len(ALPHA_TARGETS), len(ALPHA_SPEEDS_EPOCHS)])
    blueprint, blend, target, speed = (slice(a, b) for a, b in pairwise(sections))
    slot_mask = np.zeros((len(Op), len(legal)), dtype=np.bool_)
    rest: NDArray[np.bool_] = np.zeros((len(Op), len(legal), int(sections[-1])), dtype=np.bool_)
    for s, choices in enumerate(legal):
        slot_mask[choices.ops, s] = True
        rest[Op.GERMINATE, s, blueprint] = (False, *choices.affordable)  # never NOOP
        rest[Op.GERMINATE, s, blend] = [not choices.column or i == 0 for i in range(len(BLENDS))]
        rest[Op.GERMINATE, s, target] = True
        rest[Op.SET_ALPHA_TARGET, s, target] = [t != choices.alpha_target for t in ALPHA_TARGETS]
        rest[[Op.GERMINATE, Op.SET_ALPHA_TARGET, Op.PRUNE], s, speed] = True
    op: NDArray[np.bool_] = np.any(slot_mask, axis=1)
    op[Op.WAIT] = True
    rest = np.logical_and(rest, slot_mask[..., None])
    for mask in (op, slot_mask, rest):
        mask.flags.writeable = False
    return ActionMasks(op, slot_mask, rest)
