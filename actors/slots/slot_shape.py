"""`SlotShape`: what may grow in one slot, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import log2

from actors.blueprints.blends import GATED, gate_shapes
from actors.blueprints.blueprint import NOOP
from actors.blueprints.family import Family


class SlotKind(IntEnum):
    """Where a slot is."""

    STREAM = 0  # between two layers of the model
    COLUMN = 1  # beside the model: a network whose output is mixed with the model's


@dataclass(frozen=True)
class SlotShape:
    """What may grow in one slot."""

    kind: SlotKind
    family: Family
    """Its table names the blueprints."""
    width: int
    """Units or channels at a slot in the stream; 0 for a column slot."""
    costs: tuple[int | None, ...]
    """Parameters of a seed of each blueprint, without the gate of its blend; None for those that cannot grow here."""
    gate_params: int
    """Parameters of the gate of a `gated` blend; 0 if the slot does not permit it."""
    flops: tuple[float | None, ...]
    """Forward FLOPs of one sample through a seed of each blueprint, in the unit of those of the model; parameters,
    where FLOPs are not known of a model and its seeds."""


Flops = Sequence[float | None]  # by blueprint


def stream_slot(family: Family, width: int, flops: Flops | None = None) -> SlotShape:
    """Return the shape of a slot in the stream, at a hidden tensor of this width."""
    costs = tuple(None if b is NOOP else b.cost(width) for b in family.blueprints)
    gate = sum(p.size for p in gate_shapes(GATED, width).values())
    return SlotShape(SlotKind.STREAM, family, width, costs, gate, tuple(costs if flops is None else flops))


def column_slot(family: Family, params_of: Callable[[float], int | None], flops: Flops | None = None) -> SlotShape:
    """Return the shape of a column slot; `params_of(scale)` counts its parameters, None if it cannot be made."""
    costs = tuple(None if c is None else params_of(c.scale) for c in family.columns)
    return SlotShape(SlotKind.COLUMN, family, 0, costs, 0, tuple(costs if flops is None else flops))


def doublings(host_params: float, added_params: float) -> float:
    """Return log2((host + added) / host), the number of times that the model's size doubled."""
    return log2((host_params + added_params) / host_params)
