"""`GrowthState`: the slots of one model, with their costs, legal actions, measurements and observation.

The environment's episodes and the controller that grows a user's model both run on it, so that the policy meets the
same rules in training and in use.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.blueprints.blends import GATED
from actors.config import PRICE
from actors.slots import observation
from actors.slots.contributions import Contributions, EvalResult, Subset, contributions
from actors.slots.lifecycle import Gates, Lifecycle, SeedAction
from actors.slots.model_view import ModelView, TrainingState
from actors.slots.slot_shape import SlotShape, doublings
from actors.slots.stage import BLENDED, Slot, Stage
from actors.types.actions import PROFILES, ActionMasks, ActionSpec, Op

log = logging.getLogger(__name__)

HEALTHY_NORM = (1e-8, 100.0)
"""A minibatch whose gradient norm lies between these bounds counts as healthy."""


@dataclass(frozen=True)
class GrowthRules:
    """Limits on growth that hold for a whole episode or training run."""

    budget_params: float  # most parameters that seeds may add
    gates: Gates
    embargo_epochs: int  # epochs for which a pruned slot stays empty
    profile: str  # name of the action profile in `actors.types.actions.PROFILES`
    rent_weight: float  # points per doubling of the model's parameters


class GrowthState:
    """The slots of one model, each epoch's actions on them, and what was measured of their seeds.

    Each epoch: `read` checks the policy's choices, `apply` takes the action and advances the alphas, the caller trains
    and evaluates the model with the seeds in `blended()` and `training()`, `record_gradients` and
    `record_contributions` store the results, and `lifecycle.automatic_transitions()` ends the epoch.
    """

    def __init__(
        self, slot_shapes: Sequence[SlotShape], host_params: int, rules: GrowthRules, spec: ActionSpec
    ) -> None:
        self.spec = spec
        self.host_params, self.budget_params = host_params, rules.budget_params
        self.rent_weight = rules.rent_weight
        self._slot_kinds = tuple(shape.kind for shape in slot_shapes)
        self.set_slot_shapes(slot_shapes)
        self.profile = PROFILES[rules.profile]
        blends = [shape.blends for shape in slot_shapes]
        self.lifecycle = Lifecycle(blends, rules.gates, rules.embargo_epochs, self.profile.automatic_advance)
        self.last_op, self.last_success = Op.WAIT, True

    def set_slot_shapes(self, slot_shapes: Sequence[SlotShape]) -> None:
        """Set what may grow in each slot; later, only the costs may change."""
        self.slot_shapes = tuple(slot_shapes)
        dearest = [[inf if cost is None else cost + shape.gate_params for cost in shape.costs] for shape in slot_shapes]
        self._max_params = dearest  # [S][num_blueprints], with the dearest blend
        self._left: float | None = None  # parameters that the budget permitted when `_by_slot` was computed
        self._sorted_costs = [sorted(float(cost) for cost in costs if cost < inf) for costs in dearest]  # by slot

    @property
    def slots(self) -> list[Slot]:
        return self.lifecycle.slots

    def blended(self) -> dict[int, float]:
        """Return the alphas of the seeds that are part of the model's function, by slot."""
        return {s: slot.alpha for s, slot in enumerate(self.slots) if slot.stage in BLENDED}

    def training(self) -> dict[int, float]:
        """Return the alpha targets of the seeds that learn without affecting the model, by slot."""
        return {s: slot.alpha_target for s, slot in enumerate(self.slots) if slot.stage is Stage.TRAINING}

    def filled(self) -> set[int]:
        """Return the slots that hold a seed."""
        return {s for s, slot in enumerate(self.slots) if slot.active}

    def read(self, choices: NDArray[np.int64], masks: ActionMasks | None = None) -> tuple[SeedAction, str]:
        """Return the action that one choice per head means, and why it is illegal ("" if it is legal).

        An illegal action is returned as WAIT. `masks` are the current ones, if the caller has them.
        """
        sizes = np.array(self.spec.sizes)
        if choices.shape != sizes.shape or (choices < 0).any() or (choices >= sizes).any():
            return SeedAction(Op.WAIT), f"action {choices.tolist()} does not fit the heads {sizes.tolist()}"
        op = self.profile.ops[choices[0]]
        masks, chosen = masks or self.masks(), choices.tolist()
        for head in np.flatnonzero(self.spec.relevance_table[choices[0]]).tolist():
            if not self._allows(masks, head, chosen):
                return SeedAction(Op.WAIT), f"{op.name} with {self.spec.names[head]} {choices[head]} is not legal now"
        return SeedAction(op, **self.profile.choices(op, choices)), ""

    def _allows(self, masks: ActionMasks, head: int, choices: list[int]) -> bool:
        """Return whether a head's choice is legal, given the choices of the heads before it."""
        op, slot = choices[0], choices[1]
        assert masks.slot is not None
        if head < 2:
            return bool(masks.op[op] if head == 0 else masks.slot[op, slot])
        return bool(masks.rest[op, slot, self.spec.offsets[head] - self.spec.offsets[2] + choices[head]])

    def apply(self, action: SeedAction, requested: bool = True) -> tuple[int, ...]:
        """Take a legal action and advance every alpha by one epoch; return the slots that it emptied.

        `requested` is False if the policy asked for another action, which was illegal; the next observation shows it.
        """
        before = self.filled()
        success = self.lifecycle.apply(action)
        emptied = tuple(sorted(before - self.filled()))
        self.last_op, self.last_success = action.op, success and requested
        self.lifecycle.tick_alpha()
        return emptied

    def record_gradients(self, norms_by_slot: Mapping[int, Sequence[float]], training: Mapping[int, float]) -> None:
        """Record the gradient norms of an epoch, one per minibatch, of every slot that learned."""
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
        results: Mapping[Subset, EvalResult],
        blended: Mapping[int, float],
        training: Mapping[int, float],
        due: bool,
        label: str,
    ) -> None:
        """Compute and store contributions if `due`; otherwise the last ones become one epoch older.

        `results` holds the evaluation of every subset in `subsets_to_evaluate`; `label` names the epoch in the log.
        """
        values = {subset: accuracy if isfinite(loss) else nan for subset, (accuracy, loss) in results.items()}
        new = contributions(values.__getitem__, blended, training) if due else Contributions({}, {}, {})
        for s, slot in enumerate(self.slots):
            slot.epochs_since_contribution += slot.active
            points = new.leave_one_out.get(s)
            if points is None:
                continue
            if not isfinite(points):
                log.warning("%s: the contribution of slot %d could not be measured", label, s)
                continue
            slot.contribution_velocity = None if slot.contribution is None else points - slot.contribution
            slot.contribution = points
            slot.epochs_since_contribution = 0
            slot.interaction = _known(new.interaction.get(s))
            slot.shapley = _known(new.shapley.get(s))

    def seed_cost(self, slot: int, blueprint: int, blend: int) -> int:
        """Return the parameters that such a seed adds, including the gate of its blend."""
        shape = self.slot_shapes[slot]
        cost = shape.costs[blueprint]
        if cost is None:
            raise ValueError(f"blueprint {blueprint} cannot grow in slot {slot}")
        return cost + (shape.gate_params if blend == GATED else 0)

    def slot_params(self) -> list[int]:
        """Return the parameters that the seed of each slot adds, including the gate of its blend."""
        slots = enumerate(self.slots)
        return [self.seed_cost(s, slot.blueprint, slot.blend) if slot.active else 0 for s, slot in slots]

    def added_params(self) -> int:
        """Return the parameters that all seeds add."""
        return sum(self.slot_params())

    def rent(self) -> float:
        """Return how often the model's size has doubled: log2 of its parameters over those of the host."""
        return doublings(self.host_params, self.added_params())

    def masks(self) -> ActionMasks:
        """Return the legal choices of the next action."""
        return self.lifecycle.masks(self._affordable()).narrowed(self.profile.ops, self.spec.rest_size)

    def _affordable(self) -> list[tuple[bool, ...]]:
        """Return for each slot which blueprints, without NOOP, the budget permits."""
        left = self.budget_params - self.added_params()
        if left != self._left:
            self._left = left
            self._by_slot = [tuple([cost <= left for cost in costs[1:]]) for costs in self._max_params]
        return self._by_slot

    def _cost_ranges(self, added: int) -> list[tuple[float, float] | None]:
        """Return, by slot, the rents that the cheapest and the dearest legal seed would add; None if none is legal.

        `added` is the number of parameters that all seeds add.
        """
        left, now = self.budget_params - added, doublings(self.host_params, added)

        def more(cost: float) -> float:
            return doublings(self.host_params, added + cost) - now

        ranges: list[tuple[float, float] | None] = []
        for slot, costs in zip(self.slots, self._sorted_costs, strict=True):
            legal = bisect_right(costs, left) if slot.stage is Stage.DORMANT else 0
            ranges.append((more(costs[0]), more(costs[legal - 1])) if legal else None)
        return ranges

    def record_scores(self, scores: Mapping[int, float]) -> None:
        """Record what a seed in each empty slot could do (see `EpochResult.scores`); non-finite scores are unknown."""
        for s, slot in enumerate(self.slots):
            slot.score = _known(scores.get(s)) if slot.stage is Stage.DORMANT else None

    def observation(self, training: TrainingState, hidden: Collection[str] = ()) -> dict[str, NDArray[Any]]:
        """Return what the policy observes: `obs [D]` and `blueprint_indices [S]` (-1 for empty slots).

        `hidden` names groups of slot features (keys of `HIDDEN`) that read as unknown, and possibly the price.
        """
        unknown: dict[str, Any] = {name: None for group in hidden for name in HIDDEN.get(group, ())}
        slot_params = self.slot_params()
        view = ModelView(
            training=training,
            last_op=self.last_op,
            last_success=self.last_success,
            host_params=self.host_params,
            budget_params=self.budget_params,
            rent_weight=1.0 if PRICE in hidden else self.rent_weight,
            slot_params=slot_params,
            slot_kinds=self._slot_kinds,
            cost_ranges=self._cost_ranges(sum(slot_params)),
            slots=[replace(slot, **unknown) for slot in self.slots] if unknown else self.slots,
        )
        blueprints = np.array([s.blueprint for s in self.slots], dtype=np.int64)
        return {"obs": observation.observe(view), "blueprint_indices": blueprints}


HIDDEN = {"contributions": ("contribution", "contribution_velocity", "interaction"), "scores": ("score",)}
"""Fields of a slot that can be hidden from the policy, by group."""


def _known(points: float | None) -> float | None:
    return points if points is not None and isfinite(points) else None
