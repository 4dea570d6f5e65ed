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
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.blueprints.blends import GATED
from actors.config import PRICE
from actors.slots import observation
from actors.slots.compute import Compute
from actors.slots.contributions import Contributions, EvalResult, Subset, contributions
from actors.slots.lifecycle import Gates, Lifecycle, SeedAction
from actors.slots.model_view import Costs, ModelView, TrainingState
from actors.slots.objective import Prices
from actors.slots.slot_shape import SlotKind, SlotShape, doublings
from actors.slots.stage import BLENDED, Slot, Stage
from actors.types.actions import PROFILES, ActionMasks, ActionSpec, Op

log = logging.getLogger(__name__)

BUDGET_RATIO, ISOLATED_RATIO = 16.0, 24.0
"""Default limits, in multiples of the model's own parameters: a column of four times the width of a CNN has up to 16
times its parameters, and one of twice the width may learn beside it."""
OVERFITS = 0.95
"""A model overfits once its training loss is below this share of its validation loss. Of 0.85, 0.92, 0.95 and 0.98, on
an MLP whose ratio ends at 0.90, the last two were level with the loss `own` and the first was 2 points behind. That
of a model which reads text that it has hardly seen before ends at 0.95."""
HEALTHY_NORM = (1e-8, 100.0)
"""A minibatch whose gradient norm lies between these bounds counts as healthy."""


ColumnLoss = Literal["auto", "own", "rest"]
"""What a column learns in TRAINING: the task itself (`own`), what the model leaves (`rest`), or `rest` until the model
overfits and `own` from then on (`auto`)."""


@dataclass(frozen=True)
class GrowthRules:
    """Limits on growth that hold for a whole episode or training run."""

    budget_params: float  # most parameters that seeds which joined may add to the model
    isolated_params: float  # most parameters of seeds that have not joined
    gates: Gates
    profile: str  # name of the action profile in `actors.types.actions.PROFILES`
    prices: Prices
    horizon_epochs: int
    column_loss: ColumnLoss = "auto"


class SeedParams(NamedTuple):
    """Numbers of parameters."""

    by_slot: list[int]  # of the seed in each slot, including the gate of its blend; 0 for an empty slot
    joined: int  # that seeds add to the model that would be exported, less those of a host that a column has replaced
    isolated: int  # of the seeds that have not joined the model


class GrowthState:
    """The slots of one model, each epoch's actions on them, and what was measured of their seeds.

    Each epoch: `read` checks the policy's choices, `apply` takes the action and advances the alphas, the caller trains
    and evaluates the model with the seeds in `blended()` and `training()`, `record_gradients` and
    `record_contributions` store the results, and `lifecycle.automatic_transitions()` ends the epoch.
    """

    def __init__(
        self,
        slot_shapes: Sequence[SlotShape],
        host_params: int,
        rules: GrowthRules,
        spec: ActionSpec,
        host_flops: float | None = None,
    ) -> None:
        """`host_flops` are those of the model's forward pass of one sample, in the unit of `SlotShape.flops`."""
        self.spec = spec
        self.host_params, self.budget_params = host_params, rules.budget_params
        self.isolated_params, self.column_loss = rules.isolated_params, rules.column_loss
        self.prices, self.compute = rules.prices, Compute(rules.horizon_epochs)
        self.host_flops = float(host_params if host_flops is None else host_flops)
        self._slot_kinds = tuple(shape.kind for shape in slot_shapes)
        self.set_slot_shapes(slot_shapes)
        self.profile = PROFILES[rules.profile]
        columns = [kind is SlotKind.COLUMN for kind in self._slot_kinds]
        advance = self.profile.automatic_advance
        self.lifecycle = Lifecycle(columns, rules.gates, advance, self._may_join)
        self.last_op, self.last_success = Op.WAIT, True

    def set_slot_shapes(self, slot_shapes: Sequence[SlotShape]) -> None:
        """Set what may grow in each slot; later, only the costs may change."""
        self.slot_shapes = tuple(slot_shapes)
        dearest = [[inf if cost is None else cost + shape.gate_params for cost in shape.costs] for shape in slot_shapes]
        self._max_params = dearest  # [S][num_blueprints], with the dearest blend
        self._left: float | None = None  # parameters that the budgets permitted when `_by_slot` was computed
        self._by_cost = [
            sorted(
                (float(cost), float(flops or 0.0)) for cost, flops in zip(costs, shape.flops, strict=True) if cost < inf
            )
            for costs, shape in zip(dearest, slot_shapes, strict=True)
        ]  # parameters and FLOPs of the blueprints, by slot
        same = list(zip(self._slot_kinds, self._by_cost, strict=True))
        self._same_costs_as = [same.index(slot) for slot in same]  # [S], the first slot with the same costs

    @property
    def slots(self) -> list[Slot]:
        return self.lifecycle.slots

    def blended(self) -> dict[int, float]:
        """Return the alphas of the seeds that are part of the model's function, by slot, in the order in which they
        joined: that in which columns are mixed."""
        joined = sorted((slot.joined, s) for s, slot in enumerate(self.slots) if slot.stage in BLENDED)
        return {s: self.slots[s].alpha for _, s in joined}

    def training(self) -> dict[int, float]:
        """Return the alpha targets of the seeds that learn without affecting the model, by slot."""
        return {s: slot.alpha_target for s, slot in enumerate(self.slots) if slot.stage is Stage.TRAINING}

    def learning(self) -> dict[int, float]:
        """Return the strengths at which those seeds are part of what their loss is computed of: their alpha targets, or
        1 for a column that learns the task itself, which leaves nothing of the model."""
        return {s: 1.0 if self._learns_task(s) else target for s, target in self.training().items()}

    def _learns_task(self, s: int) -> bool:
        alone = self.slots[s].learns_alone if self.column_loss == "auto" else self.column_loss == "own"
        return alone and self._slot_kinds[s] is SlotKind.COLUMN

    def record_losses(self, train_loss: float | None, val_loss: float | None) -> None:
        """Once the model overfits, columns whose loss is `auto` learn the task itself, from then on."""
        if train_loss is None or val_loss is None or not train_loss < OVERFITS * val_loss:
            return
        for slot in self.slots:
            slot.learns_alone |= slot.stage is Stage.TRAINING

    def filled(self) -> set[int]:
        """Return the slots that hold a seed."""
        return {s for s, slot in enumerate(self.slots) if slot.active}

    def read(self, choices: NDArray[np.int64], masks: ActionMasks | None = None) -> tuple[SeedAction, str]:
        """Return the action that one choice per head means, and why it is illegal ("" if it is legal).

        An illegal action is returned as WAIT. `masks` are the current ones, if the caller has them.
        """
        choices = np.asarray(choices, dtype=np.int64)
        sizes, chosen = self.spec.sizes, choices.tolist()
        if choices.shape != (len(sizes),) or not all(0 <= c < n for c, n in zip(chosen, sizes, strict=True)):
            return SeedAction(Op.WAIT), f"action {chosen} does not fit the heads {list(sizes)}"
        op, masks = self.profile.ops[chosen[0]], masks or self.masks()
        for head, relevant in enumerate(self.spec.relevance[chosen[0]]):
            if relevant and not self._allows(masks, head, chosen):
                return SeedAction(Op.WAIT), f"{op.name} with {self.spec.names[head]} {chosen[head]} is not legal now"
        return SeedAction(op, **self.profile.choices(op, chosen)), ""

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
        new = contributions(values.__getitem__, blended, training) if due else Contributions({}, {})
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

    def seed_cost(self, slot: int, blueprint: int, blend: int) -> int:
        """Return the parameters that such a seed adds, including the gate of its blend."""
        shape = self.slot_shapes[slot]
        cost = shape.costs[blueprint]
        assert cost is not None, f"blueprint {blueprint} cannot grow in slot {slot}"
        return cost + (shape.gate_params if blend == GATED else 0)

    def params(self) -> SeedParams:
        """Count the parameters of the seeds that are there."""
        by_slot, joined = [0] * len(self.slots), 0
        for s, slot in enumerate(self.slots):
            if slot.active:
                by_slot[s] = self.seed_cost(s, slot.blueprint, slot.blend)
                joined += by_slot[s] if slot.stage in BLENDED else 0
        isolated = sum(by_slot) - joined
        return SeedParams(by_slot, joined - (self.host_params if self.lifecycle.replaced else 0), isolated)

    def added_params(self) -> int:
        """Return the parameters that all seeds add, less those of a host that a column has replaced."""
        params = self.params()
        return params.joined + params.isolated

    def doublings(self) -> float:
        """Return how often the parameters of the model that would be exported have doubled."""
        return doublings(self.host_params, self.params().joined)

    def epoch_cost(
        self,
        blended: Collection[int],
        training: Collection[int] = (),
        subsets: Collection[Subset] = (),
        evaluation: float = 0.0,
    ) -> float:
        """Return what an epoch with these seeds costs, in epochs of the bare model.

        `subsets` are evaluated; the model itself would be in any case. `evaluation` is the cost of evaluating the bare
        model once, in epochs of its training. Seeds of the stream learn in a pass of their own through the model. A
        column needs no other pass through it. Each set of seeds in the stream is evaluated by a pass of its own,
        columns by one pass.
        """
        host = 0.0 if self.lifecycle.replaced else self.host_flops
        flops = {s: self._seed_flops(s) for s in (*blended, *training)}
        stream = {s for s in flops if self._slot_kinds[s] is SlotKind.STREAM}
        model = host + sum(flops[s] for s in blended)
        shadow = sum(flops[s] for s in training if s not in stream)
        if stream.intersection(training):
            shadow += host + sum(flops[s] for s in stream)
        measured = -model if subsets else 0.0
        measured += sum(host + sum(flops[s] for s in on) for on in {frozenset(stream & subset) for subset in subsets})
        measured += sum(flops[s] for s in frozenset().union(*subsets) - stream)
        return (model + shadow + evaluation * measured) / self.host_flops

    def _seed_flops(self, slot: int) -> float:
        return self.slot_shapes[slot].flops[self.slots[slot].blueprint] or 0.0

    def _may_join(self, slot: int) -> bool:
        params = self.params()
        return params.joined + params.by_slot[slot] <= self.budget_params

    def masks(self) -> ActionMasks:
        """Return the legal choices of the next action."""
        return self.lifecycle.masks(self._affordable()).narrowed(self.profile.ops, self.spec.rest_size)

    def _room(self, params: SeedParams) -> float:
        """Return the parameters that one more seed may have: in isolation now, and in the model if it joined."""
        return min(self.budget_params - params.joined, self.isolated_params - params.isolated)

    def _affordable(self) -> list[tuple[bool, ...]]:
        """Return for each slot which blueprints, without NOOP, the budgets permit."""
        left = self._room(self.params())
        if left != self._left:
            self._left = left
            self._by_slot = [tuple([cost <= left for cost in costs[1:]]) for costs in self._max_params]
        return self._by_slot

    def _costs(self, params: SeedParams) -> list[Costs | None]:
        """Return, by slot, what the cheapest and the dearest legal seed would cost; None if none is legal."""
        left, replaced = self._room(params), self.lifecycle.replaced
        costs, known = list[Costs | None](), dict[tuple[int, int], Costs]()
        for s, (slot, by_cost) in enumerate(zip(self.slots, self._by_cost, strict=True)):
            exists = not replaced or self._slot_kinds[s] is SlotKind.COLUMN
            legal = bisect_right(by_cost, (left, inf)) if exists and slot.stage is Stage.DORMANT else 0
            if not legal:
                costs.append(None)
                continue
            if (key := (self._same_costs_as[s], legal)) not in known:
                ends = by_cost[0], by_cost[legal - 1]
                sizes = tuple([self._size(params.joined, cost) for cost, _ in ends])
                known[key] = Costs(sizes, tuple([self._effort(s, flops) for _, flops in ends]))
            costs.append(known[key])
        return costs

    def _sizes(self, params: SeedParams) -> list[float]:
        """Return by how many doublings the model is, or would be, larger with the seed of each slot, `[S]`."""
        slots = zip(self.slots, params.by_slot, strict=True)
        others = [params.joined - (size if slot.stage in BLENDED else 0) for slot, size in slots]
        return [self._size(other, size) for other, size in zip(others, params.by_slot, strict=True)]

    def _size(self, others: float, size: float) -> float:
        """Return the doublings that a seed with `size` parameters adds to a model to which `others` were added."""
        if size == 0:
            return 0.0
        if self.host_params + others <= 0:  # the seed has replaced everything else
            return doublings(self.host_params, others + size)
        return doublings(self.host_params + others, size)

    def _efforts(self) -> list[float]:
        """Return the doublings of training compute for the seed of each slot, if it trains up to the horizon, `[S]`."""
        return [self._effort(s, self._seed_flops(s)) if slot.active else 0.0 for s, slot in enumerate(self.slots)]

    def _effort(self, s: int, flops: float) -> float:
        """Return the doublings of training compute for a seed with these FLOPs that trains up to the horizon."""
        apart = self._slot_kinds[s] is SlotKind.STREAM and self.slots[s].stage not in BLENDED
        return self.compute.effort((flops + (self.host_flops if apart else 0.0)) / self.host_flops)

    def record_scores(self, scores: Mapping[int, float]) -> None:
        """Record what a seed in each empty slot could do (see `EpochResult.scores`); non-finite scores are unknown."""
        for s, slot in enumerate(self.slots):
            slot.score = _known(scores.get(s)) if slot.stage is Stage.DORMANT else None

    def observation(self, training: TrainingState, hidden: Collection[str] = ()) -> dict[str, NDArray[Any]]:
        """Return what the policy observes: `obs [D]` and `blueprint_indices [S]` (-1 for empty slots).

        `hidden` names groups of slot features (keys of `HIDDEN`) that read as unknown, and possibly the price.
        """
        unknown: dict[str, Any] = {name: None for group in hidden for name in HIDDEN.get(group, ())}
        params = self.params()
        view = ModelView(
            training=training,
            last_op=self.last_op,
            last_success=self.last_success,
            host_params=self.host_params,
            budget_params=self.budget_params,
            prices=Prices(1.0, 0.0) if PRICE in hidden else self.prices,
            compute_doublings=self.compute.doublings(),
            slot_params=params.by_slot,
            joined_params=params.joined,
            slot_kinds=self._slot_kinds,
            costs=self._costs(params),
            sizes=self._sizes(params),
            efforts=self._efforts(),
            slots=[replace(slot, **unknown) for slot in self.slots] if unknown else self.slots,
        )
        blueprints = np.array([s.blueprint for s in self.slots], dtype=np.int64)
        return {"obs": observation.observe(view), "blueprint_indices": blueprints}


HIDDEN = {"contributions": ("contribution", "contribution_velocity", "interaction"), "scores": ("score",)}
"""Fields of a slot that can be hidden from the policy, by group."""


def _known(points: float | None) -> float | None:
    return points if points is not None and isfinite(points) else None
