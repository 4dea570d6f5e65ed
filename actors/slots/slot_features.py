"""The features of one slot."""

from __future__ import annotations

from actors.slots.model_view import Feature, ModelView, clip, known, one_hot, symlog
from actors.slots.slot_shape import SlotKind
from actors.slots.stage import Stage
from actors.types.actions import BLENDS

FRESHNESS_DECAY = 0.9  # per epoch since the last measurement
BLIND_EPOCHS = 4  # largest number of epochs in a stage that is observed if time is hidden


def _epochs_in_stage(v: ModelView, s: int) -> list[float]:
    scale = BLIND_EPOCHS if v.training.time_hidden else v.training.horizon_epochs
    return [min(1.0, v.slots[s].epochs_in_stage / scale)]


def _points(x: float) -> float:
    return symlog(x) / symlog(100.0)


def _worth(v: ModelView, s: int) -> list[float]:
    points = v.slots[s].contribution
    return [0.0, 0.0] if points is None else [1.0, clip(_points(points - v.prices.doubling * v.sizes[s]), 1.2)]


def _position(v: ModelView, s: int) -> list[float]:
    return [(s + 1) / v.slot_kinds.count(SlotKind.STREAM) if v.slot_kinds[s] is SlotKind.STREAM else 1.0]


def _costs(v: ModelView, s: int) -> list[float]:
    costs = v.costs[s]
    if costs is None:
        return [0.0] * 5
    efforts = (0.0, 0.0) if v.training.time_hidden else costs.effort
    return [1.0, *(clip(cost / 4.0, 2.0) for cost in (*costs.size, *efforts))]


def _freshness(v: ModelView, s: int) -> list[float]:
    slot = v.slots[s]
    return [0.0 if slot.contribution is None else FRESHNESS_DECAY**slot.epochs_since_contribution]


OF_SLOT = (
    Feature("active", 1, 0, 1, "the slot has a seed", lambda v, s: [float(v.slots[s].active)]),
    Feature("stage", len(Stage), 0, 1, "one-hot", lambda v, s: one_hot(v.slots[s].stage, len(Stage))),
    Feature("epochs_in_stage", 1, 0, 1, f"/ horizon; / {BLIND_EPOCHS}, at most 1, if time is hidden",
            _epochs_in_stage),
    Feature("kind", len(SlotKind), 0, 1, "one-hot: in the stream, or for a column",
            lambda v, s: one_hot(v.slot_kinds[s], len(SlotKind))),
    Feature("position", 1, 0, 1,
            "place in the stream, from near 0 at the input to 1 at the output; 1 for a column", _position),
    Feature("costs", 5, -2, 2,
            "known, if the slot can be filled; by the cheapest and by the dearest legal seed: doublings of the "
            "model's parameters / 4, if it joined; doublings of the training FLOPs / 4, if it trained from now to the "
            "horizon", _costs),
    Feature("score", 2, 0, 5,
            "known; symlog(norm of the gradient at an empty slot / norm of the host's gradient)",
            lambda v, s: known(v.slots[s].score, symlog)),
)  # fmt: skip
"""What holds for a slot with or without a seed."""

OF_SEED = (
    Feature("alpha", 1, 0, 1, "strength of the blend", lambda v, s: [v.slots[s].alpha]),
    Feature("alpha_target", 1, 0, 1, "target of alpha", lambda v, s: [v.slots[s].alpha_target]),
    Feature("alpha_velocity", 1, -1, 1, "change of alpha per epoch",
            lambda v, s: [0.0 if (ramp := v.slots[s].ramp) is None else ramp.velocity]),
    Feature("blend", len(BLENDS), 0, 1, "one-hot", lambda v, s: one_hot(v.slots[s].blend, len(BLENDS))),
    Feature("age", 1, 0, 1, "epochs since germination / horizon; 0 if time is hidden",
            lambda v, s: v.in_time(v.slots[s].age_epochs / v.training.horizon_epochs)),
    Feature("params", 1, 0, 1, "parameters of the seed / budget, at most 1",
            lambda v, s: [min(v.slot_params[s] / v.budget_params, 1.0)]),
    Feature("size", 1, -2, 2, "doublings of the model's parameters / 4 by the seed, if it joined or since it did",
            lambda v, s: [clip(v.sizes[s] / 4.0, 2.0)]),
    Feature("effort", 1, 0, 2,
            "doublings of the training FLOPs / 4 by the seed from now to the horizon; 0 if time is hidden",
            lambda v, s: v.in_time(clip(v.efforts[s] / 4.0, 2.0))),
    Feature("contribution", 2, -1, 1, "known; symlog(leave-one-out points) / symlog(100)",
            lambda v, s: known(v.slots[s].contribution, _points)),
    Feature("worth", 2, -1.2, 1.2,
            "known; symlog(leave-one-out points less the price of the seed's doublings) / symlog(100)", _worth),
    Feature("contribution_velocity", 2, -1.2, 1.2,
            "known; symlog(change since the measurement before) / symlog(100)",
            lambda v, s: known(v.slots[s].contribution_velocity, _points)),
    Feature("contribution_freshness", 1, 0, 1,
            f"{FRESHNESS_DECAY} ** epochs since the contribution was measured; 0 if it never was", _freshness),
    Feature("interaction", 2, -1.2, 1.2, "known; mean over partners, as contribution",
            lambda v, s: known(v.slots[s].interaction, _points)),
    Feature("gradient_norm", 2, 0, 5, "known; symlog of the last epoch's mean norm",
            lambda v, s: known(v.slots[s].gradient_norm, symlog)),
    Feature("gradient_health", 2, 0, 1, "known; share of healthy minibatches",
            lambda v, s: known(v.slots[s].gradient_health, float)),
    Feature("gradient_health_prev", 2, 0, 1, "known; the same one epoch earlier",
            lambda v, s: known(v.slots[s].gradient_health_prev, float)),
)  # fmt: skip
"""What holds for the seed in a slot; 0 if the slot is empty."""

SLOT = OF_SLOT + OF_SEED
