"""What the policy sees: one table with name, size, range and meaning of every feature.

Scale-free and bounded; a value that may be unknown has a `known` flag beside it, and reads 0 while unknown. Blueprint
identity goes in separately as `blueprint_indices [S]`. The flat observation is the base features followed by each
slot's: `[base_size + S * slot_size]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import copysign, isnan, log1p
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.slots.stage import Slot, Stage
from actors.types.actions import BLENDS, Op

HISTORY = 4  # epochs of loss and accuracy, the present one included
FRESHNESS_DECAY = 0.9  # per epoch since the last measurement
BLIND_EPOCHS = 4  # where time is hidden, epochs in a stage are told apart up to this many
NORM_REFERENCE = 1.0  # a gradient norm of this size reads symlog(1)


@dataclass(frozen=True)
class ModelView:
    """All that may be observed after an epoch."""

    epoch: int
    horizon_epochs: int
    chance_loss: float  # nats
    num_classes: int | None  # None where the task has no classes
    val_losses: Sequence[float]  # newest last, at least one
    accuracies: Sequence[float | None]  # points, as many; None where it is not known
    last_op: Op
    last_success: bool
    host_params: int
    budget_params: float
    slot_params: Sequence[int]  # parameters grown at each slot
    slots: Sequence[Slot]
    time_hidden: bool = False


class BaseFeature(NamedTuple):
    name: str
    size: int
    low: float
    high: float
    meaning: str
    value: Callable[[ModelView], Sequence[float]]


class SlotFeature(NamedTuple):
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
    return [0.0 if x is None else _clip(symlog(x / v.chance_loss)) for x in _history(v.val_losses)]


def _accuracies(v: ModelView) -> list[float]:
    return [0.0 if x is None else x / 100.0 for x in _history(v.accuracies)]


def _time(v: ModelView) -> list[float]:
    return [0.0 if v.time_hidden else v.epoch / v.horizon_epochs]


def _epochs_in_stage(v: ModelView, s: int) -> list[float]:
    scale = BLIND_EPOCHS if v.time_hidden else v.horizon_epochs
    return [min(1.0, v.slots[s].epochs_in_stage / scale)]


def _age(v: ModelView, s: int) -> list[float]:
    return [0.0 if v.time_hidden else v.slots[s].age_epochs / v.horizon_epochs]


def _one_hot(index: int, size: int) -> list[float]:
    return [float(i == index) for i in range(size)]


def _known(x: float | None, scale: Callable[[float], float]) -> list[float]:
    """(known, value): an unknown value is (0, 0), a measured 0 is (1, 0)."""
    return [0.0, 0.0] if x is None else [1.0, _clip(scale(x))]


def _points(x: float) -> float:
    return symlog(x) / symlog(100.0)


BASE: tuple[BaseFeature, ...] = (
    BaseFeature("time", 1, 0, 1, "epoch / horizon; 0 where time is hidden", _time),
    BaseFeature(
        "chance",
        1,
        0,
        1,
        "chance level, 1 / classes; 0 without classes",
        lambda v: [1.0 / v.num_classes if v.num_classes else 0.0],
    ),
    BaseFeature("loss", HISTORY, -5, 5, "symlog(validation loss / loss of the uniform guess), newest first", _losses),
    BaseFeature("accuracy", HISTORY, 0, 1, "validation accuracy, newest first", _accuracies),
    BaseFeature(
        "history_known",
        HISTORY - 1,
        0,
        1,
        "whether each older entry of loss exists",
        lambda v: [float(x is not None) for x in _history(v.val_losses)[1:]],
    ),
    BaseFeature(
        "accuracy_known",
        HISTORY,
        0,
        1,
        "whether each entry of accuracy is known",
        lambda v: [float(x is not None) for x in _history(v.accuracies)],
    ),
    BaseFeature(
        "stage_counts",
        len(Stage),
        0,
        1,
        "share of slots in each stage",
        lambda v: [sum(s.stage is stage for s in v.slots) / len(v.slots) for stage in Stage],
    ),
    BaseFeature("last_op", len(Op), 0, 1, "op executed last, one-hot", lambda v: _one_hot(v.last_op, len(Op))),
    BaseFeature("last_success", 1, 0, 1, "whether it took effect", lambda v: [float(v.last_success)]),
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
    SlotFeature("active", 1, 0, 1, "a seed is there", lambda v, s: [float(v.slots[s].active)]),
    SlotFeature("stage", len(Stage), 0, 1, "one-hot", lambda v, s: _one_hot(v.slots[s].stage, len(Stage))),
    SlotFeature("alpha", 1, 0, 1, "strength of the blend", lambda v, s: [v.slots[s].alpha]),
    SlotFeature("alpha_target", 1, 0, 1, "where alpha is going", lambda v, s: [v.slots[s].alpha_target]),
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
        "one-hot, 0 where no seed is",
        lambda v, s: _one_hot(v.slots[s].blend if v.slots[s].active else -1, len(BLENDS)),
    ),
    SlotFeature(
        "epochs_in_stage",
        1,
        0,
        1,
        f"/ horizon; / {BLIND_EPOCHS}, at most 1, where time is hidden",
        _epochs_in_stage,
    ),
    SlotFeature("age", 1, 0, 1, "epochs since germination / horizon; 0 where time is hidden", _age),
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
        f"{FRESHNESS_DECAY} ** epochs since the contribution was measured, 0 where it never was",
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
    """Layout of the flat observation: base features, then S times the slot features."""

    base_size: int
    slot_size: int
    slots: int

    @property
    def size(self) -> int:
        return self.base_size + self.slots * self.slot_size


def obs_spec(slots: int) -> ObsSpec:
    return ObsSpec(sum(f.size for f in BASE), sum(f.size for f in SLOT), slots)


def observe(view: ModelView) -> NDArray[np.float32]:
    """The flat observation `[base_size + S * slot_size]`."""
    values = [x for feature in BASE for x in feature.value(view)]
    for s in range(len(view.slots)):
        values += [x for feature in SLOT for x in feature.value(view, s)]
    return np.array(values, dtype=np.float32)


def bounds(slots: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(low, high) of the flat observation, for the Gymnasium space."""
    rows = [f for f in BASE for _ in range(f.size)] + [f for f in SLOT for _ in range(f.size)] * slots
    return np.array([f.low for f in rows], dtype=np.float32), np.array([f.high for f in rows], dtype=np.float32)


TABLE_BEGIN, TABLE_END = "<!-- observation table: begin -->", "<!-- observation table: end -->"


def with_table(document: str) -> str:
    """Return `document` with the current table between its markers."""
    before, _, rest = document.partition(TABLE_BEGIN)
    _, _, after = rest.partition(TABLE_END)
    return f"{before}{TABLE_BEGIN}\n{markdown_table()}\n{TABLE_END}{after}"


def markdown_table() -> str:
    """The table as documentation: index, name, size, range, meaning."""
    lines = ["| index | feature | size | range | meaning |", "| --- | --- | --- | --- | --- |"]
    for title, table in (("base", BASE), ("slot", SLOT)):
        index = 0
        for feature in table:
            where = f"{title} {index}" + (f"-{index + feature.size - 1}" if feature.size > 1 else "")
            lines.append(
                f"| {where} | `{feature.name}` | {feature.size} | {feature.low:g} to {feature.high:g} "
                f"| {feature.meaning} |"
            )
            index += feature.size
    return "\n".join(lines)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_table(path.read_text()))
