"""The features of a whole model."""

from __future__ import annotations

from collections.abc import Sequence

from actors.slots.model_view import HISTORY, Feature, ModelView, clip, history, known, log2_scaled, one_hot, symlog
from actors.slots.slot_shape import doublings
from actors.slots.stage import Stage
from actors.types.actions import Op


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
