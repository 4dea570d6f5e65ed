"""`SlotPlan`: the seeds that one pass applies in one slot, across environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from actors.blueprints.blends import GATED, channel_gate_logits
from actors.blueprints.blueprint import Blueprint, Params
from actors.env.stacked.layout import StackLayout
from actors.kernels.cnn.functions import Blend
from actors.layers.convolution import with_kernels
from actors.layers.layer_norm import Units
from actors.types.actions import BLENDS

Key = TypeVar("Key")
RunKey = tuple[int, bool, int, int]  # slot, whether in TRAINING, bank, turn
MULTIPLY = BLENDS.index("multiply")


class StackedSeed(NamedTuple):
    """A seed of one environment that takes part in a pass.

    Sorting groups seeds by slot, mode and bank, those in the stream first.
    """

    slot: int
    training: bool  # in TRAINING: not part of the host
    bank: int  # index of the bank that holds its parameters
    turn: int  # of a column: the how manieth of its environment and mode to be mixed, from 0; 0 in the stream
    env: int
    blend: int
    alpha: float

    @property
    def run(self) -> RunKey:
        """What seeds have in common that are computed together."""
        return self[:4]


ParamsOf = Callable[[Sequence[StackedSeed]], Callable[[], Params]]
"""Consecutive seeds -> a function that reads their current parameters."""


def runs_of(seeds: Sequence[StackedSeed], key: Callable[[StackedSeed], Key]) -> list[tuple[Key, slice]]:
    """Return slices of consecutive seeds with equal keys."""
    out, start = [], 0
    for value, group in groupby(seeds, key=key):
        stop = start + sum(1 for _ in group)
        out.append((value, slice(start, stop)))
        start = stop
    return out


@dataclass(frozen=True)
class BlueprintGroup:
    """Consecutive seeds of a slot that have one blueprint, width and mode, and are computed together."""

    blueprint: Blueprint
    rows: slice  # among the seeds of the slot
    params: Callable[[], Params]  # returns their current parameters

    def grow(self, h: Tensor, units: Units | None, layout: StackLayout) -> Tensor:
        """Return the outputs of n seeds, in the shape of `h`.

        A batched matrix product rounds differently for a batch of one, so a single seed is computed twice. Otherwise
        the result of an environment would depend on whether another has the same blueprint.
        """
        params = self.params()
        if h.shape[layout.env_dim] > 1:
            return self.blueprint.forward(params, h, units)
        double = None if units is None else Units(*(t.expand(2, -1, -1) for t in units))
        twice = {k: t.expand(2, *t.shape[1:]) for k, t in params.items()}
        return layout.slice(self.blueprint.forward(twice, layout.doubled(h), double), slice(1))


@dataclass(frozen=True)
class SlotPlan:
    """The seeds of one slot in one pass: n of the pass's environments have one."""

    envs: Tensor  # [n], indices into the environments of the pass
    in_order: bool  # whether they are 0 to n - 1
    layout: StackLayout
    units: Units | None  # of those environments; None for CNNs
    groups: tuple[BlueprintGroup, ...]
    alpha: Tensor  # [n, 1, 1], with a 1 for each spatial dimension beyond the first
    blends: Tensor  # of that shape, indices into `BLENDS`
    kinds: frozenset[int]  # the blends that occur
    gate: Callable[[], Params]  # returns the current gates

    def __call__(self, h: Tensor) -> Tensor:
        """Return `h` of the pass's environments with the seeds of this slot blended in."""
        layout = self.layout
        everywhere = self.in_order and h.shape[layout.env_dim] == len(self.envs)
        here = h if everywhere else layout.select(h, self.envs)
        outputs = [p.grow(layout.slice(here, p.rows), self._units(p.rows), layout) for p in self.groups]
        joined = self._joined(here, layout.cat(outputs))
        return joined if everywhere else layout.replace(h, self.envs, joined)

    def _joined(self, here: Tensor, grown: Tensor) -> Tensor:
        """Return `here` with the outputs of the seeds blended in, each by its own of `actors.blueprints.blends`."""
        if self.layout.dims and with_kernels(here, self.layout.dims):
            gate, width = self.gate(), here.shape[2]
            w, b = gate["gate.w"][:, :width, 0], gate["gate.b"][:, 0, 0]
            blends, alpha = self.blends.flatten(), self.alpha.flatten()
            blended: Tensor = Blend.apply(here, grown, blends, alpha, w, b)  # type: ignore[no-untyped-call]
            return blended
        logits = self._gate_logits(here) if GATED in self.kinds else None  # first: autograd sums in this order
        step = change = grown - here
        if logits is not None:
            gates = torch.sigmoid(logits)
            step = torch.where(self.blends == GATED, gates, torch.ones_like(gates)) * change
        if MULTIPLY in self.kinds:
            step = torch.where(self.blends == MULTIPLY, here * torch.tanh(change), step)
        return here + self.alpha * step

    def _units(self, rows: slice) -> Units | None:
        return None if self.units is None else self.units.rows(rows)

    def _gate_logits(self, here: Tensor) -> Tensor:
        gate = self.gate()
        if self.layout.dims:
            width = here.shape[2]
            return channel_gate_logits(here, {"gate.w": gate["gate.w"][:, :width], "gate.b": gate["gate.b"]})
        # a sum instead of a matrix product, which would round differently for one row
        return (here * gate["gate.w"].mT).sum(-1, keepdim=True) + gate["gate.b"]


Plans = dict[int, SlotPlan]  # by slot
