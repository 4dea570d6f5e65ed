"""`GrowthState`: the slots of one model as the policy sees and moves them, whoever trains it.

The environment's episodes run on it, and so does the controller of a user's own training loop: what is legal, what a
seed costs, what was measured of it and what the policy observes are the same in both by construction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.blueprints.blends import gate_shapes
from actors.env.blueprints.family import Family
from actors.env.blueprints.vector import Param
from actors.env.slots import observation
from actors.env.slots.contributions import Contributions, Subset, measure
from actors.env.slots.lifecycle import Gates, Lifecycle, SeedAction
from actors.env.slots.stage import BLENDED, Slot, Stage
from actors.types.actions import BLENDS, PROFILES, ActionMasks, ActionSpec, Op

log = logging.getLogger(__name__)

HEALTHY_NORM = (1e-8, 100.0)

EvalResult = tuple[float, float]  # (accuracy in points, cross-entropy in nats) on the validation rows


class SlotShape(NamedTuple):
    """Where a seed may grow."""

    family: Family
    width: int  # units or channels


class TrainingState(NamedTuple):
    """What is observed of a model besides its slots."""

    epoch: int
    horizon_epochs: int
    chance_loss: float  # nats
    num_classes: int | None
    val_losses: Sequence[float]  # newest last, at least one
    accuracies: Sequence[float | None]  # points, as many
    time_hidden: bool = False


class GrowthState:
    def __init__(
        self,
        places: Sequence[SlotShape],
        host_params: int,
        budget_params: float,
        gates: Gates,
        embargo_epochs: int,
        profile: str,
        spec: ActionSpec,
    ) -> None:
        self.places, self.spec = tuple(places), spec
        self.host_params, self.budget_params = host_params, budget_params
        tables = [place.family.blueprints for place in places]
        rows = range(len(tables[0]))
        self._costs = [[t[b].cost(p.width) for t, p in zip(tables, places, strict=True)] for b in rows]
        self._gates = [[_size(gate_shapes(b, place.width)) for place in places] for b in range(len(BLENDS))]
        offered = np.array([place.family.offered() for place in places]).T
        self._dearest = np.where(offered, np.array(self._costs) + np.max(self._gates, axis=0), np.inf)  # [B, S]
        self.profile = PROFILES[profile]
        self.lifecycle = Lifecycle(len(places), gates, embargo_epochs, self.profile.automatic_advance)
        self.last_op, self.last_success = Op.WAIT, True

    @property
    def slots(self) -> list[Slot]:
        return self.lifecycle.slots

    def blended(self) -> dict[int, float]:
        """Slots whose seeds are part of the model's function, at their alphas."""
        return {s: slot.alpha for s, slot in enumerate(self.slots) if slot.stage in BLENDED}

    def training(self) -> dict[int, float]:
        """Slots whose seeds learn apart from the host, at their alpha targets."""
        return {s: slot.alpha_target for s, slot in enumerate(self.slots) if slot.stage is Stage.TRAINING}

    def filled(self) -> set[int]:
        return {s for s, slot in enumerate(self.slots) if slot.active}

    def read(self, choices: NDArray[np.int64]) -> tuple[SeedAction, str]:
        """The action that these choices make, and what is wrong with it ("" if nothing): then it is WAIT."""
        sizes = np.array(self.spec.sizes)
        if choices.shape != sizes.shape or (choices < 0).any() or (choices >= sizes).any():
            return SeedAction(Op.WAIT), f"action {choices.tolist()} does not fit the heads {sizes.tolist()}"
        op = self.profile.ops[choices[0]]
        for head in np.flatnonzero(self.spec.relevance_table[choices[0]]).tolist():
            if not self._allows(head, choices.tolist()):
                return SeedAction(Op.WAIT), f"{op.name} with {self.spec.names[head]} {choices[head]} is not legal now"
        return SeedAction(op, **self.profile.choices(op, choices)), ""

    def _allows(self, head: int, choices: list[int]) -> bool:
        """Whether a head's choice is legal given those of the heads before it."""
        masks, op, slot = self.masks(), choices[0], choices[1]
        assert masks.slot is not None
        if head < 2:
            return bool(masks.op[op] if head == 0 else masks.slot[op, slot])
        return bool(masks.rest[op, slot, self.spec.offsets[head] - self.spec.offsets[2] + choices[head]])

    def apply(self, action: SeedAction, asked: bool = True) -> tuple[int, ...]:
        """Take a legal action, then one epoch of every ramp; returns the slots that it emptied.

        `asked` is whether this is what was asked for: the next observation says so.
        """
        before = self.filled()
        success = self.lifecycle.apply(action)
        emptied = tuple(sorted(before - self.filled()))
        self.last_op, self.last_success = action.op, success and asked
        self.lifecycle.tick_alpha()
        return emptied

    def record_gradients(self, norms_by_slot: Mapping[int, Sequence[float]], training: Mapping[int, float]) -> None:
        """An epoch's gradient norms, one for each minibatch, of the slots that learnt."""
        low, high = HEALTHY_NORM
        for s, norms in norms_by_slot.items():
            slot = self.slots[s]
            slot.gradient_health_prev = slot.gradient_health
            slot.gradient_health = sum(low < n < high for n in norms) / len(norms)
            mean = sum(norms) / len(norms)
            slot.gradient_norm = mean if isfinite(mean) else None
            slot.trained_epochs += s in training

    def record_contributions(
        self,
        measured: Mapping[Subset, EvalResult],
        blended: Mapping[int, float],
        training: Mapping[int, float],
        due: bool,
        where: str,
    ) -> None:
        """Take over what could be measured; a slot that was not measured ages its last value."""
        values = {subset: accuracy if isfinite(loss) else nan for subset, (accuracy, loss) in measured.items()}
        own = measure(values.__getitem__, blended, training) if due else Contributions({}, {}, {})
        for s, slot in enumerate(self.slots):
            slot.epochs_since_contribution += slot.active
            points = own.leave_one_out.get(s)
            if points is None:
                continue
            if not isfinite(points):
                log.warning("%s: the contribution of slot %d could not be measured", where, s)
                continue
            slot.contribution_velocity = None if slot.contribution is None else points - slot.contribution
            slot.contribution = points
            slot.epochs_since_contribution = 0
            slot.interaction = _known(own.interaction.get(s))
            slot.shapley = _known(own.shapley.get(s))

    def seed_cost(self, slot: int, blueprint: int, blend: int) -> int:
        """Parameters that such a seed adds, its blend's gate included."""
        return self._costs[blueprint][slot] + self._gates[blend][slot]

    def slot_params(self) -> list[int]:
        """Parameters grown at each slot, its blend's gate included."""
        slots = enumerate(self.slots)
        return [self.seed_cost(s, slot.blueprint, slot.blend) if slot.active else 0 for s, slot in slots]

    def added_params(self) -> int:
        return sum(self.slot_params())

    def masks(self) -> ActionMasks:
        """Exact legal choices now."""
        affordable = self._dearest <= self.budget_params - self.added_params()
        return self.lifecycle.masks(affordable).narrowed(self.profile.ops, self.spec.rest_size)

    def observation(self, setting: TrainingState, contributions_hidden: bool = False) -> dict[str, NDArray[Any]]:
        """What the policy sees: `obs [D]` and `blueprint_indices [S]`."""
        slots = [replace(slot, **NOT_MEASURED) for slot in self.slots] if contributions_hidden else self.slots
        view = observation.ModelView(
            epoch=setting.epoch,
            horizon_epochs=setting.horizon_epochs,
            chance_loss=setting.chance_loss,
            num_classes=setting.num_classes,
            val_losses=setting.val_losses,
            accuracies=setting.accuracies,
            last_op=self.last_op,
            last_success=self.last_success,
            host_params=self.host_params,
            budget_params=self.budget_params,
            slot_params=self.slot_params(),
            slots=slots,
            time_hidden=setting.time_hidden,
        )
        blueprints = np.array([s.blueprint for s in self.slots], dtype=np.int64)
        return {"obs": observation.observe(view), "blueprint_indices": blueprints}


NOT_MEASURED: dict[str, Any] = {"contribution": None, "contribution_velocity": None, "interaction": None}


def _size(shapes: Mapping[str, Param]) -> int:
    return sum(p.size for p in shapes.values())


def _known(points: float | None) -> float | None:
    return points if points is not None and isfinite(points) else None
