"""The features of a whole model."""

from __future__ import annotations

from collections.abc import Sequence

from actors.slots.model_view import (
    HISTORY,
    BaseFeature,
    ModelView,
    clip,
    history,
    known,
    log2_scaled,
    one_hot,
    symlog,
)
from actors.slots.slot_shape import doublings
from actors.slots.stage import Stage
from actors.types.actions import Op


def _losses(v: ModelView, losses: Sequence[float | None]) -> list[float]:
    return [0.0 if x is None else clip(symlog(x / v.training.chance_loss)) for x in history(losses)]


def _val_losses(v: ModelView) -> list[float]:
    return _losses(v, v.training.val_losses)


def _accuracies(v: ModelView) -> list[float]:
    return [0.0 if x is None else x / 100.0 for x in history(v.training.accuracies)]


def _stage_counts(v: ModelView) -> list[float]:
    counts = [0] * len(Stage)
    for slot in v.slots:
        counts[slot.stage] += 1
    return [count / len(v.slots) for count in counts]


def _time(v: ModelView) -> list[float]:
    return [0.0 if v.training.time_hidden else v.training.epoch / v.training.horizon_epochs]


BASE: tuple[BaseFeature, ...] = (
    BaseFeature("time", 1, 0, 1, "epoch / horizon; 0 if time is hidden", _time),
    BaseFeature(
        "chance",
        1,
        0,
        1,
        "chance level, 1 / classes; 0 without classes",
        lambda v: [1.0 / v.training.num_classes if v.training.num_classes else 0.0],
    ),
    BaseFeature(
        "loss", HISTORY, -5, 5, "symlog(validation loss / loss of the uniform guess), newest first", _val_losses
    ),
    BaseFeature("accuracy", HISTORY, 0, 1, "validation accuracy, newest first", _accuracies),
    BaseFeature(
        "history_known",
        HISTORY - 1,
        0,
        1,
        "whether each older entry of loss exists",
        lambda v: [float(x is not None) for x in history(v.training.val_losses)[1:]],
    ),
    BaseFeature(
        "accuracy_known",
        HISTORY,
        0,
        1,
        "whether each entry of accuracy is known",
        lambda v: [float(x is not None) for x in history(v.training.accuracies)],
    ),
    BaseFeature(
        "stage_counts",
        len(Stage),
        0,
        1,
        "share of slots in each stage",
        _stage_counts,
    ),
    BaseFeature("last_op", len(Op), 0, 1, "last executed op, one-hot", lambda v: one_hot(v.last_op, len(Op))),
    BaseFeature("last_success", 1, 0, 1, "whether that op had an effect", lambda v: [float(v.last_success)]),
    BaseFeature(
        "budget_used",
        1,
        0,
        1,
        "added parameters / budget, at most 1",
        lambda v: [min(max(v.added_params / v.budget_params, 0.0), 1.0)],
    ),
    BaseFeature(
        "growth",
        1,
        -2,
        2,
        "log2((host + added) / host parameters) / 4",
        lambda v: [clip(doublings(v.host_params, v.added_params) / 4.0, 2.0)],
    ),
    BaseFeature(
        "train_loss",
        HISTORY,
        -5,
        5,
        "symlog(mean training loss of an epoch / loss of the uniform guess), newest first",
        lambda v: _losses(v, v.training.train_losses),
    ),
    BaseFeature(
        "train_loss_known",
        HISTORY,
        0,
        1,
        "whether each entry of train_loss is known",
        lambda v: [float(x is not None) for x in history(v.training.train_losses)],
    ),
    BaseFeature(
        "horizon",
        1,
        0,
        1,
        "log2(epochs in all) / 16; 0 if time is hidden",
        lambda v: [0.0 if v.training.time_hidden else log2_scaled(v.training.horizon_epochs, 16.0)],
    ),
    BaseFeature(
        "price",
        1,
        -1,
        1,
        "log2(rent weight in points per doubling) / 8; -1 without rent",
        lambda v: [log2_scaled(v.rent_weight, 8.0)],
    ),
    BaseFeature(
        "host_params", 1, 0, 1, "log2(parameters of the host) / 32", lambda v: [log2_scaled(v.host_params, 32.0)]
    ),
    BaseFeature(
        "train_rows",
        2,
        0,
        1,
        "known; log2(rows of training data) / 32",
        lambda v: known(v.training.train_rows, lambda rows: log2_scaled(rows, 32.0)),
    ),
    BaseFeature(
        "params_per_row",
        2,
        -1,
        1,
        "known; log2((host + added parameters) / rows of training data) / 16",
        lambda v: known(v.training.train_rows, lambda rows: log2_scaled((v.host_params + v.added_params) / rows, 16.0)),
    ),
)
