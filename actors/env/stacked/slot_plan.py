"""Plans of an epoch: which seeds take part where, in what order, and as what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from actors.env.blueprints.blends import GATED, channel_gate_logits
from actors.env.blueprints.vector import Blueprint, Params, Units
from actors.env.layers.fusion import fusible
from actors.env.stacked.layout import StackLayout
from actors.types.actions import BLENDS

MULTIPLY = BLENDS.index("multiply")


class StackedSeed(NamedTuple):
    """One seed that takes part; sorting puts seeds of one slot, mode and bank side by side."""

    slot: int
    learning: bool  # in TRAINING, apart from the host
    bank: int  # its blueprint's, for the width at its slot
    env: int
    blend: int
    alpha: float


@dataclass(frozen=True)
class BlueprintGroup:
    """Consecutive rows of one blueprint at one slot; `params` reads them as they are now."""

    blueprint: Blueprint
    rows: slice  # among the slot's rows
    params: Callable[[], Params]

    def grow(self, h: Tensor, units: Units | None, layout: StackLayout) -> Tensor:
        """The outputs of n seeds, in the shape of `h`.

        A batch of one matrix product is computed in another order than a batch of many, so one row is made two: what
        an environment computes must not depend on whether its neighbours grow the same.
        """
        params = self.params()
        if h.shape[layout.env_dim] > 1:
            return self.blueprint.forward(params, h, units)
        double = None if units is None else Units(*(t.expand(2, -1, -1) for t in units))
        twice = {k: t.expand(2, *t.shape[1:]) for k, t in params.items()}
        return layout.slice(self.blueprint.forward(twice, layout.twice(h), double), slice(1))


@dataclass(frozen=True)
class SlotPlan:
    """What happens at one slot in one pass: n environments of the pass have a seed there."""

    envs: Tensor  # [n] rows of the pass
    layout: StackLayout
    units: Units | None  # of those rows; None for channels
    parts: tuple[BlueprintGroup, ...]
    alpha: Tensor  # [n, 1, 1], with a 1 for each spatial dimension beyond the first
    gated: Tensor | None  # bool, of that shape; None where no gate is
    multiply: Tensor | None  # bool, of that shape; None where nothing multiplies
    gate: Callable[[], Params]

    def __call__(self, h: Tensor) -> Tensor:
        """`h` of E environments with the seeds blended in where they are (see `actors.env.blueprints.blends`)."""
        layout = self.layout
        here = layout.pick(h, self.envs)
        grown = [p.grow(layout.slice(here, p.rows), self._units(p.rows), layout) for p in self.parts]
        gate_logits = None if self.gated is None else self._opening(here)
        joined = _blend(here, torch.cat(grown, layout.env_dim), self.alpha, self.gated, gate_logits, self.multiply)
        return layout.put(h, self.envs, joined)

    def _units(self, rows: slice) -> Units | None:
        return None if self.units is None else self.units.rows(rows)

    def _opening(self, here: Tensor) -> Tensor:
        gate = self.gate()
        if self.layout.dims:
            width = here.shape[2]
            return channel_gate_logits(here, {"gate.w": gate["gate.w"][:, :width], "gate.b": gate["gate.b"]})
        # a sum and not a product of matrices: one row must not be computed otherwise than many
        return (here * gate["gate.w"].mT).sum(-1, keepdim=True) + gate["gate.b"]


@fusible
def _blend(
    h: Tensor, grown: Tensor, alpha: Tensor, gated: Tensor | None, gate_logits: Tensor | None, multiply: Tensor | None
) -> Tensor:
    """Return `h` with `grown` blended in, each row by its own blend (see `actors.env.blueprints.blends`)."""
    change = grown - h
    step = change
    if gated is not None and gate_logits is not None:
        open_to = torch.sigmoid(gate_logits)
        step = torch.where(gated, open_to, torch.ones_like(open_to)) * change
    if multiply is not None:
        step = torch.where(multiply, h * torch.tanh(change), step)
    return h + alpha * step


Plans = dict[int, SlotPlan]  # by slot


def slot_plan(
    seeds: Sequence[StackedSeed],
    place: dict[int, int],
    layout: StackLayout,
    units: Units | None,
    blueprints: Sequence[Blueprint],
    params_of: Callable[[Sequence[StackedSeed]], Callable[[], Params]],
    gate: Callable[[], Params],
    like: Tensor,
) -> SlotPlan:
    """The plan of one slot from its seeds, in their order. `place` maps an environment to its row of the pass,
    `units` are the pass's,
    `blueprints` the banks', and `params_of` gives the parameters of consecutive seeds of one bank and mode."""
    parts, start = [], 0
    for (_, number), run in groupby(seeds, key=lambda seed: (seed.learning, seed.bank)):
        members = list(run)
        parts.append(BlueprintGroup(blueprints[number], slice(start, start + len(members)), params_of(members)))
        start += len(members)
    envs = torch.tensor([place[seed.env] for seed in seeds], device=like.device)

    shape = (-1, *(1,) * max(2, 1 + layout.dims))

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(shape)

    def mask(blend: int) -> Tensor | None:
        chosen = [seed.blend == blend for seed in seeds]
        return torch.tensor(chosen, device=like.device).view(shape) if any(chosen) else None

    alpha = column([seed.alpha for seed in seeds])
    own = None if units is None else units.rows(envs)
    return SlotPlan(envs, layout, own, tuple(parts), alpha, mask(GATED), mask(MULTIPLY), gate)
