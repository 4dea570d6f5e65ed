"""What the features of an observation are computed from, and the scales that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import copysign, log1p, log2
from typing import NamedTuple

from actors.slots.objective import Prices
from actors.slots.slot_shape import SlotKind
from actors.slots.stage import Slot
from actors.types.actions import Op

HISTORY = 4  # epochs of loss and accuracy, including the last one


class TrainingState(NamedTuple):
    """How far the training of a model is, without its slots."""

    epoch: int
    horizon_epochs: int
    chance_loss: float  # loss of the uniform guess, nats
    num_classes: int | None  # None if the task has no classes
    val_losses: Sequence[float]  # nats, newest last, at least one
    accuracies: Sequence[float | None]  # points, as many; None if unknown
    train_losses: Sequence[float | None]  # nats, mean over an epoch, newest last; None if unknown
    val_rows: int | None  # on which val_losses, accuracies and contributions are measured; None if unknown
    time_hidden: bool = False


class Costs(NamedTuple):
    """What the cheapest and the dearest legal seed of a slot would cost, in doublings."""

    size: tuple[float, ...]  # of the model, if it joined
    effort: tuple[float, ...]  # of the training compute, if it trained from now to the horizon


class ModelView(NamedTuple):
    """Everything that features are computed from: a model and its slots after an epoch."""

    training: TrainingState
    last_op: Op
    last_success: bool
    host_params: int
    budget_params: float
    prices: Prices
    compute_doublings: float  # C
    slot_params: Sequence[int]  # parameters that the seed of each slot adds
    joined_params: int  # that seeds add to the model as it would be exported
    slot_kinds: Sequence[SlotKind]
    costs: Sequence[Costs | None]  # of legal seeds; None if none is legal
    sizes: Sequence[float]  # doublings of the model by the seed of each slot, if it joined or since it did
    efforts: Sequence[float]  # doublings of the training compute by the seed of each slot, from now to the horizon
    slots: Sequence[Slot]

    def in_time(self, value: float) -> list[float]:
        """Return a feature that tells the time; 0 if time is hidden."""
        return [0.0 if self.training.time_hidden else value]


class Feature(NamedTuple):
    """A feature of the whole model, or of one slot."""

    name: str
    size: int
    low: float
    high: float
    meaning: str
    value: Callable[..., Sequence[float]]  # of a `ModelView` or, of a slot, also of its index


def symlog(x: float) -> float:
    return copysign(log1p(abs(x)), x)


def clip(x: float, bound: float = 5.0) -> float:
    if -bound <= x <= bound:
        return x
    return -bound if x < 0.0 else bound  # also for NaN


def log2_scaled(x: float, scale: float) -> float:
    """Return log2(x) / scale, between -1 and 1; -1 for x = 0."""
    return clip(log2(x) / scale, 1.0) if x > 0 else -1.0


@cache
def one_hot(index: int, size: int) -> tuple[float, ...]:
    return tuple(float(i == index) for i in range(size))


def known(x: float | None, scale: Callable[[float], float]) -> list[float]:
    """Return (known, value): (0, 0) for an unknown value, (1, 0) for a measured 0."""
    return [0.0, 0.0] if x is None else [1.0, clip(scale(x))]


def history(values: Sequence[float | None]) -> list[float | None]:
    """Return the last `HISTORY` values, newest first; None where there are fewer."""
    newest_first = list(values[: -HISTORY - 1 : -1])
    return newest_first + [None] * (HISTORY - len(newest_first))
