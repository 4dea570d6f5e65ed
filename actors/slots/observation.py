"""The observation of the policy: two tables (`BASE` and `SLOT`) with name, size, range and meaning of every feature.

Features do not depend on the scale of the task, and they are bounded. A value that may be unknown has a `known` flag
and reads 0 while it is unknown. The flat observation `[base_size + S * slot_size]` holds the base features, then the
features of each slot. Blueprints are observed separately, as `blueprint_indices [S]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from actors.slots.model_view import HISTORY, Feature, ModelView, clip, history, known, log2_scaled, one_hot, symlog
from actors.slots.slot_shape import SlotKind, doublings
from actors.slots.stage import Stage
from actors.types.actions import BLENDS, Op

FRESHNESS_DECAY = 0.9  # per epoch since the last measurement
BLIND_EPOCHS = 4  # largest number of epochs in a stage that is observed if time is hidden


def _losses(v: ModelView, losses: Sequence[float | None]) -> list[float]:
    return [0.0 if x is None else clip(symlog(x / v.training.chance_loss)) for x in history(losses)]


def _flags(values: Sequence[float | None]) -> list[float]:
    return [float(x is not None) for x in history(values)]


def _overfit(v: ModelView) -> list[float]:
    trained, validated = v.training.train_losses[-1:], v.training.val_losses[-1]
    if not trained or trained[0] is None or trained[0] <= 0 or validated <= 0:
        return [0.0, 0.0]
    return [1.0, log2_scaled(trained[0] / validated, 8.0)]


def _stage_counts(v: ModelView) -> list[float]:
    """How many slots a model has does not matter: a policy that learned with five meets models with two."""
    stages: list[Stage] = [slot.stage for slot in v.slots if slot.stage != Stage.DORMANT]
    stages = stages or [Stage.DORMANT]
    return [stages.count(stage) / len(stages) for stage in Stage]


BASE = (
    Feature("time", 1, 0, 1, "epoch / horizon; 0 if time is hidden",
            lambda v: v.in_time(v.training.epoch / v.training.horizon_epochs)),
    Feature("chance", 1, 0, 1, "chance level, 1 / classes; 0 without classes",
            lambda v: [1.0 / v.training.num_classes if v.training.num_classes else 0.0]),
    Feature("loss", HISTORY, -5, 5, "symlog(validation loss / loss of the uniform guess), newest first",
            lambda v: _losses(v, v.training.val_losses)),
    Feature("accuracy", HISTORY, 0, 1, "validation accuracy, newest first",
            lambda v: [0.0 if x is None else x / 100.0 for x in history(v.training.accuracies)]),
    Feature("history_known", HISTORY - 1, 0, 1, "whether each older entry of loss exists",
            lambda v: _flags(v.training.val_losses)[1:]),
    Feature("accuracy_known", HISTORY, 0, 1, "whether each entry of accuracy is known",
            lambda v: _flags(v.training.accuracies)),
    Feature("stage_counts", len(Stage), 0, 1, "share of the slots in use in each stage; dormant if none is",
            _stage_counts),
    Feature("last_op", len(Op), 0, 1, "last executed op, one-hot", lambda v: one_hot(v.last_op, len(Op))),
    Feature("last_success", 1, 0, 1, "whether that op had an effect", lambda v: [float(v.last_success)]),
    Feature("budget_used", 1, 0, 1, "parameters that were added to the model / budget, at most 1",
            lambda v: [min(max(v.joined_params / v.budget_params, 0.0), 1.0)]),
    Feature("growth", 1, -2, 2, "doublings of the model's parameters / 4: log2((host + added) / host) / 4",
            lambda v: [clip(doublings(v.host_params, v.joined_params) / 4.0, 2.0)]),
    Feature("train_loss", HISTORY, -5, 5,
            "symlog(mean training loss of an epoch / loss of the uniform guess), newest first",
            lambda v: _losses(v, v.training.train_losses)),
    Feature("train_loss_known", HISTORY, 0, 1, "whether each entry of train_loss is known",
            lambda v: _flags(v.training.train_losses)),
    Feature("horizon", 1, 0, 1, "log2(epochs in all) / 16; 0 if time is hidden",
            lambda v: v.in_time(log2_scaled(v.training.horizon_epochs, 16.0))),
    Feature("price", 1, -1, 1, "log2(points per doubling of the model's parameters) / 8; -1 without a price",
            lambda v: [log2_scaled(v.prices.doubling, 8.0)]),
    Feature("compute_price", 2, -1, 1,
            "whether training compute has a price; log2(points per doubling of the training FLOPs) / 8",
            lambda v: [1.0, log2_scaled(c, 8.0)] if (c := v.prices.compute_doubling) > 0 else [0.0, 0.0]),
    Feature("compute", 1, -2, 2,
            "doublings of the training FLOPs so far / 4, if nothing else grew; 0 if time is hidden",
            lambda v: v.in_time(clip(v.compute_doublings / 4.0, 2.0))),
    Feature("overfit", 2, -1, 1, "known; log2(training loss / validation loss) / 8 of the last epoch", _overfit),
    Feature("val_rows", 2, 0, 1, "known; log2(rows of validation data) / 16",
            lambda v: known(v.training.val_rows, lambda rows: log2_scaled(rows, 16.0))),
)  # fmt: skip
"""What holds for the whole model."""


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


def _costs(v: ModelView, s: int) -> tuple[float, ...]:
    return _scaled_costs(v.costs[s], v.training.time_hidden)


@lru_cache(64)
def _scaled_costs(costs: tuple[Sequence[float], Sequence[float]] | None, time_hidden: bool) -> tuple[float, ...]:
    if costs is None:
        return (0.0,) * 5
    sizes, efforts = costs
    return 1.0, *(clip(cost / 4.0, 2.0) for cost in (*sizes, *((0.0, 0.0) if time_hidden else efforts)))


def _freshness(v: ModelView, s: int) -> list[float]:
    slot = v.slots[s]
    return [0.0 if slot.contribution is None else FRESHNESS_DECAY**slot.epochs_since_contribution]


def _measured(name: str, low: float, high: float, meaning: str, scale: Callable[[float], float]) -> Feature:
    """Return the feature of a field of `Slot` that may be unknown."""
    return Feature(name, 2, low, high, meaning, lambda v, s: known(getattr(v.slots[s], name), scale))


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
    _measured("score", 0, 5, "known; symlog(norm of the gradient at an empty slot / norm of the host's gradient)",
              symlog),
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
    _measured("contribution", -1, 1, "known; symlog(leave-one-out points) / symlog(100)", _points),
    Feature("worth", 2, -1.2, 1.2,
            "known; symlog(leave-one-out points less the price of the seed's doublings) / symlog(100)", _worth),
    _measured("contribution_velocity", -1.2, 1.2, "known; symlog(change since the measurement before) / symlog(100)",
              _points),
    Feature("contribution_freshness", 1, 0, 1,
            f"{FRESHNESS_DECAY} ** epochs since the contribution was measured; 0 if it never was", _freshness),
    _measured("interaction", -1.2, 1.2, "known; mean over partners, as contribution", _points),
    _measured("gradient_norm", 0, 5, "known; symlog of the last epoch's mean norm", symlog),
    _measured("gradient_health", 0, 1, "known; share of healthy minibatches", float),
    _measured("gradient_health_prev", 0, 1, "known; the same one epoch earlier", float),
)  # fmt: skip
"""What holds for the seed in a slot; 0 if the slot is empty."""

SLOT = OF_SLOT + OF_SEED
NO_SEED = [0.0] * sum(f.size for f in OF_SEED)


def observe(view: ModelView) -> NDArray[np.float32]:
    """Return the flat observation `[base_size + S * slot_size]`."""
    values = list[float]()
    for feature in BASE:
        values += feature.value(view)
    for s, slot in enumerate(view.slots):
        for feature in SLOT if slot.active else OF_SLOT:
            values += feature.value(view, s)
        if not slot.active:
            values += NO_SEED
    return np.array(values, dtype=np.float32)


def bounds(slots: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the bounds (low, high) of the flat observation."""
    entries = [f for f in BASE for _ in range(f.size)] + [f for f in SLOT for _ in range(f.size)] * slots
    return np.array([f.low for f in entries], dtype=np.float32), np.array([f.high for f in entries], dtype=np.float32)
