"""Plans of an epoch: which seeds take part where, in what order, and as what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from actors.actions import BLENDS
from actors.env.blends import GATED
from actors.env.blueprints import Blueprint, Params, Units

MULTIPLY = BLENDS.index("multiply")


class LiveSeed(NamedTuple):
    """One seed that takes part; sorting puts seeds of one slot, mode and blueprint side by side."""

    slot: int
    learning: bool  # in TRAINING, apart from the host
    blueprint: int
    env: int
    blend: int
    alpha: float


@dataclass(frozen=True)
class Part:
    """Consecutive rows of one blueprint at one slot; `params` reads them as they are now."""

    blueprint: Blueprint
    rows: slice  # among the slot's rows
    params: Callable[[], Params]

    def grow(self, h: Tensor, units: Units) -> Tensor:
        """The seeds' outputs `[n, M, W]`.

        A batch of one matrix product is computed in another order than a batch of many, so one row is made two: what
        an environment computes must not depend on whether its neighbours grow the same.
        """
        params = self.params()
        if h.shape[0] > 1:
            return self.blueprint.forward(params, h, units)
        double = Units(*(t.expand(2, -1, -1) for t in units))
        return self.blueprint.forward({k: t.expand(2, -1, -1) for k, t in params.items()}, h.expand(2, -1, -1), double)[
            :1
        ]


@dataclass(frozen=True)
class SlotPlan:
    """What happens at one slot in one pass: n environments of the pass have a seed there."""

    envs: Tensor  # [n] rows of the pass
    units: Units  # of those rows
    parts: tuple[Part, ...]
    alpha: Tensor  # [n, 1, 1]
    gated: Tensor | None  # [n, 1, 1] bool; None where no gate is
    multiply: Tensor | None  # [n, 1, 1] bool; None where nothing multiplies
    gate: Callable[[], Params]

    def __call__(self, h: Tensor) -> Tensor:
        """`h [E, M, W]` with the seeds blended in where they are (see `actors.env.blends`)."""
        here = h[self.envs]
        grown = [p.grow(here[p.rows], self.units.rows(p.rows)) for p in self.parts]
        change = torch.cat(grown) - here
        step = change
        if self.gated is not None:
            gate = self.gate()
            # a sum and not a product of matrices: one row must not be computed otherwise than many
            opening = torch.sigmoid((here * gate["gate.w"].mT).sum(-1, keepdim=True) + gate["gate.b"])
            step = torch.where(self.gated, opening, torch.ones_like(opening)) * change
        if self.multiply is not None:
            step = torch.where(self.multiply, here * torch.tanh(change), step)
        return h.index_copy(0, self.envs, here + self.alpha * step)


Plans = dict[int, SlotPlan]  # by slot


def slot_plan(
    seeds: Sequence[LiveSeed],
    place: dict[int, int],
    units: Units,
    blueprints: Sequence[Blueprint],
    params_of: Callable[[Sequence[LiveSeed]], Callable[[], Params]],
    gate: Callable[[], Params],
    like: Tensor,
) -> SlotPlan:
    """The plan of one slot from its seeds, in their order. `place` maps an environment to its row of the pass,
    `params_of` gives the parameters of consecutive seeds of one blueprint and mode."""
    parts, start = [], 0
    for (_, number), run in groupby(seeds, key=lambda seed: (seed.learning, seed.blueprint)):
        members = list(run)
        parts.append(Part(blueprints[number], slice(start, start + len(members)), params_of(members)))
        start += len(members)
    envs = torch.tensor([place[seed.env] for seed in seeds], device=like.device)

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)

    def mask(blend: int) -> Tensor | None:
        chosen = [seed.blend == blend for seed in seeds]
        return torch.tensor(chosen, device=like.device).view(-1, 1, 1) if any(chosen) else None

    alpha = column([seed.alpha for seed in seeds])
    return SlotPlan(envs, units.rows(envs), tuple(parts), alpha, mask(GATED), mask(MULTIPLY), gate)
