"""The observation of the policy: two tables (`BASE` and `SLOT`) with name, size, range and meaning of every feature.

Features do not depend on the scale of the task, and they are bounded. A value that may be unknown has a `known` flag
and reads 0 while it is unknown. The flat observation `[base_size + S * slot_size]` holds the base features, then the
features of each slot. Blueprints are observed separately, as `blueprint_indices [S]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import copysign, isnan, log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.slots.stage import Slot, Stage
from actors.types.actions import BLENDS, Op

HISTORY = 4  # epochs of loss and accuracy, including the last one
FRESHNESS_DECAY = 0.9  # per epoch since the last measurement
BLIND_EPOCHS = 4  # largest number of epochs in a stage that is observed if time is hidden


class TrainingState(NamedTuple):
    """How far the training of a model is, without its slots."""

    epoch: int
    horizon_epochs: int
    chance_loss: float  # loss of the uniform guess, nats
    num_classes: int | None  # None if the task has no classes
    val_losses: Sequence[float]  # nats, newest last, at least one
    accuracies: Sequence[float | None]  # points, as many; None if unknown
    time_hidden: bool = False


@dataclass(frozen=True)
class ModelView:
    """Everything that features are computed from: a model and its slots after an epoch."""

    training: TrainingState
    last_op: Op
    last_success: bool
    host_params: int
    budget_params: float
    slot_params: Sequence[int]  # parameters that the seed of each slot adds
    slots: Sequence[Slot]


class BaseFeature(NamedTuple):
    """A feature of the whole model."""

    name: str
    size: int
    low: float
    high: float
    meaning: str
    value: Callable[[ModelView], Sequence[float]]


class SlotFeature(NamedTuple):
    """A feature of one slot."""

    name: str
    size: int
    low: float
    high: float
    meaning: str
    value: Callable[[ModelView, int], Sequence[float]]


def symlog(x: float) -> float:
    return copysign(log1p(abs(x)), x)


def _clip(x: float, bound: float = 5.0) -> float:
    return bound if isnan(x) else min(max(x, -bound), bound)


def _history(values: Sequence[float | None]) -> list[float | None]:
    newest_first = list(values[::-1][:HISTORY])
    return newest_first + [None] * (HISTORY - len(newest_first))


def _losses(v: ModelView) -> list[float]:
    return [0.0 if x is None else _clip(symlog(x / v.training.chance_loss)) for x in _history(v.training.val_losses)]


def _accuracies(v: ModelView) -> list[float]:
    return [0.0 if x is None else x / 100.0 for x in _history(v.training.accuracies)]


def _time(v: ModelView) -> list[float]:
    return [0.0 if v.training.time_hidden else v.training.epoch / v.training.horizon_epochs]


def _epochs_in_stage(v: ModelView, s: int) -> list[float]:
    scale = BLIND_EPOCHS if v.training.time_hidden else v.training.horizon_epochs
    return [min(1.0, v.slots[s].epochs_in_stage / scale)]


def _age(v: ModelView, s: int) -> list[float]:
    return [0.0 if v.training.time_hidden else v.slots[s].age_epochs / v.training.horizon_epochs]


def _one_hot(index: int, size: int) -> list[float]:
    return [float(i == index) for i in range(size)]


def _known(x: float | None, scale: Callable[[float], float]) -> list[float]:
    """Return (known, value): (0, 0) for an unknown value, (1, 0) for a measured 0."""
    return [0.0, 0.0] if x is None else [1.0, _clip(scale(x))]


def _points(x: float) -> float:
    return symlog(x) / symlog(100.0)


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
    BaseFeature("loss", HISTORY, -5, 5, "symlog(validation loss / loss of the uniform guess), newest first", _losses),
    BaseFeature("accuracy", HISTORY, 0, 1, "validation accuracy, newest first", _accuracies),
    BaseFeature(
        "history_known",
        HISTORY - 1,
        0,
        1,
        "whether each older entry of loss exists",
        lambda v: [float(x is not None) for x in _history(v.training.val_losses)[1:]],
    ),
    BaseFeature(
        "accuracy_known",
        HISTORY,
        0,
        1,
        "whether each entry of accuracy is known",
        lambda v: [float(x is not None) for x in _history(v.training.accuracies)],
    ),
    BaseFeature(
        "stage_counts",
        len(Stage),
        0,
        1,
        "share of slots in each stage",
        lambda v: [sum(s.stage is stage for s in v.slots) / len(v.slots) for stage in Stage],
    ),
    BaseFeature("last_op", len(Op), 0, 1, "last executed op, one-hot", lambda v: _one_hot(v.last_op, len(Op))),
    BaseFeature("last_success", 1, 0, 1, "whether that op had an effect", lambda v: [float(v.last_success)]),
    BaseFeature("budget_used", 1, 0, 1, "added parameters / budget", lambda v: [sum(v.slot_params) / v.budget_params]),
    BaseFeature(
        "growth",
        1,
        0,
        5,
        "symlog(added / host parameters)",
        lambda v: [_clip(symlog(sum(v.slot_params) / v.host_params))],
    ),
)

SLOT: tuple[SlotFeature, ...] = (
    SlotFeature("active", 1, 0, 1, "the slot has a seed", lambda v, s: [float(v.slots[s].active)]),
    SlotFeature("stage", len(Stage), 0, 1, "one-hot", lambda v, s: _one_hot(v.slots[s].stage, len(Stage))),
    SlotFeature("alpha", 1, 0, 1, "strength of the blend", lambda v, s: [v.slots[s].alpha]),
    SlotFeature("alpha_target", 1, 0, 1, "target of alpha", lambda v, s: [v.slots[s].alpha_target]),
    SlotFeature(
        "alpha_velocity",
        1,
        -1,
        1,
        "change of alpha per epoch",
        lambda v, s: [0.0 if (ramp := v.slots[s].ramp) is None else ramp.velocity],
    ),
    SlotFeature(
        "blend",
        len(BLENDS),
        0,
        1,
        "one-hot; 0 if the slot is empty",
        lambda v, s: _one_hot(v.slots[s].blend if v.slots[s].active else -1, len(BLENDS)),
    ),
    SlotFeature(
        "epochs_in_stage",
        1,
        0,
        1,
        f"/ horizon; / {BLIND_EPOCHS}, at most 1, if time is hidden",
        _epochs_in_stage,
    ),
    SlotFeature("age", 1, 0, 1, "epochs since germination / horizon; 0 if time is hidden", _age),
    SlotFeature(
        "params", 1, 0, 1, "parameters of the seed / budget", lambda v, s: [v.slot_params[s] / v.budget_params]
    ),
    SlotFeature(
        "contribution",
        2,
        -1,
        1,
        "known; symlog(leave-one-out points) / symlog(100)",
        lambda v, s: _known(v.slots[s].contribution, _points),
    ),
    SlotFeature(
        "contribution_velocity",
        2,
        -1.2,
        1.2,
        "known; symlog(change since the measurement before) / symlog(100)",
        lambda v, s: _known(v.slots[s].contribution_velocity, _points),
    ),
    SlotFeature(
        "contribution_freshness",
        1,
        0,
        1,
        f"{FRESHNESS_DECAY} ** epochs since the contribution was measured; 0 if it never was",
        lambda v, s: [
            0.0 if v.slots[s].contribution is None else FRESHNESS_DECAY ** v.slots[s].epochs_since_contribution
        ],
    ),
    SlotFeature(
        "interaction",
        2,
        -1.2,
        1.2,
        "known; mean over partners, as contribution",
        lambda v, s: _known(v.slots[s].interaction, _points),
    ),
    SlotFeature(
        "gradient_norm",
        2,
        0,
        5,
        "known; symlog of the last epoch's mean norm",
        lambda v, s: _known(v.slots[s].gradient_norm, symlog),
    ),
    SlotFeature(
        "gradient_health",
        2,
        0,
        1,
        "known; share of healthy minibatches",
        lambda v, s: _known(v.slots[s].gradient_health, float),
    ),
    SlotFeature(
        "gradient_health_prev",
        2,
        0,
        1,
        "known; the same one epoch earlier",
        lambda v, s: _known(v.slots[s].gradient_health_prev, float),
    ),
)


class ObsSpec(NamedTuple):
    """Sizes of the flat observation: the base features, then the slot features of each of S slots."""

    base_size: int
    slot_size: int
    slots: int

    @property
    def size(self) -> int:
        return self.base_size + self.slots * self.slot_size


def obs_spec(slots: int) -> ObsSpec:
    return ObsSpec(sum(f.size for f in BASE), sum(f.size for f in SLOT), slots)


def observe(view: ModelView) -> NDArray[np.float32]:
    """Return the flat observation `[base_size + S * slot_size]`."""
    values = [x for feature in BASE for x in feature.value(view)]
    for s in range(len(view.slots)):
        values += [x for feature in SLOT for x in feature.value(view, s)]
    return np.array(values, dtype=np.float32)


def bounds(slots: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the bounds (low, high) of the flat observation."""
    rows = [f for f in BASE for _ in range(f.size)] + [f for f in SLOT for _ in range(f.size)] * slots
    return np.array([f.low for f in rows], dtype=np.float32), np.array([f.high for f in rows], dtype=np.float32)
