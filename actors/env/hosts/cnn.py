"""`CNN1dHost` for sequence tasks and `CNN2dHost` for image tasks.

`x` is `[M, C, *space]` and logits are `[M, classes]`; for a stack of E hosts with parameters `[E, ...]`, they are
`[M, E, C, *space]` and `[E, M, classes]`. Slots follow a residual add or a BatchNorm, never a ReLU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from actors.blueprints.blueprint import Param, Params
from actors.blueprints.family import IMAGE, SEQUENCE, Family
from actors.env.hosts.host import Resume, SlotFunction
from actors.layers.batch_norm import Normalize, batch_statistics
from actors.layers.convolution import After, classify, convolve, plane, pool_mean, unplane
from actors.layers.layer_norm import Units

STEM_TAPS, TAPS = 5, 3
LEAST_POOLED = 8
"""Sides shorter than this are not pooled."""


def _norm_shapes(name: str, channels: int) -> dict[str, Param]:
    return {f"{name}.gain": Param((1, channels), "one"), f"{name}.bias": Param((1, channels), "zero")}


def _head_shapes(channels: int, classes: int) -> dict[str, Param]:
    return {"out.w": Param((channels, classes), "fan_in"), "out.b": Param((1, classes), "zero")}


def _batch_norm(name: str, p: Params, h: Tensor, dims: int, normalize: Normalize, after: After) -> Tensor:
    return unplane(normalize(name, plane(h, dims), p[f"{name}.gain"], p[f"{name}.bias"], dims, after), h, dims)


@dataclass(frozen=True)
class CNN1dHost:
    """A residual 1-D CNN.

    Conv, BatchNorm, max-pool, ReLU, then S times [h + Conv(ReLU(BatchNorm(h))), slot, mean-pool], then BatchNorm,
    ReLU, global mean, Linear.
    """

    num_features: int
    length: int
    width: int
    num_classes: int
    slots: int

    @property
    def family(self) -> Family:
        return SEQUENCE

    def slot_width(self, slot: int) -> int:
        return self.width

    def with_width(self, width: int) -> CNN1dHost:
        return replace(self, width=width)

    def norms(self) -> dict[str, int]:
        return dict.fromkeys(("in", *map(str, range(self.slots)), "out"), self.width)

    def shapes(self) -> dict[str, Param]:
        w = self.width
        shapes = {"in.w": Param((w, self.num_features, STEM_TAPS), "fan_in")} | _norm_shapes("in", w)
        for s in range(self.slots):
            shapes |= {f"{s}.w": Param((w, w, TAPS), "fan_in")} | _norm_shapes(str(s), w)
        return shapes | _norm_shapes("out", w) | _head_shapes(w, self.num_classes)

    def num_params(self) -> int:
        return sum(p.size for p in self.shapes().values())

    def forward(
        self,
        p: Params,
        x: Tensor,
        slot: SlotFunction,
        units: Units | None = None,
        normalize: Normalize | None = None,
        resume: Resume | None = None,
    ) -> Tensor:
        norm, rectified = normalize or batch_statistics(), After(relu=True)
        first, h = resume or (-1, x)
        if resume is None:
            h = _batch_norm("in", p, convolve(x, p["in.w"], None, 1), 1, norm, After(pool=True, relu=True))
        for s in range(max(first, 0), self.slots):
            if s != first:
                h = h + convolve(_batch_norm(str(s), p, h, 1, norm, rectified), p[f"{s}.w"], None, 1)
            h = slot(s, h)
            h = pool_mean(h, 1) if h.shape[-1] >= LEAST_POOLED else h
        return classify(_batch_norm("out", p, h, 1, norm, rectified), p["out.w"], p["out.b"], 1)


@dataclass(frozen=True)
class CNN2dHost:
    """A plain 2-D CNN: S times [Conv, BatchNorm, max-pool (first two blocks), slot, ReLU], then global mean, Linear.

    The first two blocks have `width` channels, the others 1.5 times as many. Max-pooling and ReLU commute; pooling
    first makes the map at the slot smaller.
    """

    num_features: int
    size: tuple[int, int]
    width: int
    num_classes: int
    slots: int

    @property
    def family(self) -> Family:
        return IMAGE

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of each block."""
        return tuple(self.width if s < 2 else 3 * self.width // 2 for s in range(self.slots))

    def slot_width(self, slot: int) -> int:
        return self.channels[slot]

    def with_width(self, width: int) -> CNN2dHost:
        return replace(self, width=width)

    def norms(self) -> dict[str, int]:
        return {str(s): c for s, c in enumerate(self.channels)}

    def shapes(self) -> dict[str, Param]:
        shapes: dict[str, Param] = {}
        before = self.num_features
        for s, c in enumerate(self.channels):
            shapes |= {f"{s}.w": Param((c, before, TAPS, TAPS), "fan_in")} | _norm_shapes(str(s), c)
            before = c
        return shapes | _head_shapes(before, self.num_classes)

    def num_params(self) -> int:
        return sum(p.size for p in self.shapes().values())

    def forward(
        self,
        p: Params,
        x: Tensor,
        slot: SlotFunction,
        units: Units | None = None,
        normalize: Normalize | None = None,
        resume: Resume | None = None,
    ) -> Tensor:
        norm = normalize or batch_statistics()
        first, h = resume or (-1, x)
        for s in range(max(first, 0), self.slots):
            if s != first:
                after = After(pool=s < 2 and min(h.shape[-2:]) >= LEAST_POOLED)
                h = _batch_norm(str(s), p, convolve(h, p[f"{s}.w"], None, 2), 2, norm, after)
            h = torch.relu(slot(s, h))
        return classify(h, p["out.w"], p["out.b"], 2)
