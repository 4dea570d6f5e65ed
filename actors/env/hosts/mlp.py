"""`Host`: what a network must be for seeds to grow in it; and the MLP, with a slot after every residual add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from actors.env.blueprints.family import VECTOR, Family
from actors.env.blueprints.vector import Param, Params, Units, layer_norm
from actors.env.layers.batch_norm import Normalize

SlotFunction = Callable[[int, Tensor], Tensor]
"""(slot, hidden) -> hidden: what grows there, the identity where nothing does."""


class Resume(NamedTuple):
    """Enter the host at a slot, with what comes to it: what lies before is known already."""

    slot: int
    h: Tensor


class Host(Protocol):
    """A pure function of its parameters, with slots that keep the shape of what passes through them."""

    @property
    def family(self) -> Family: ...

    @property
    def slots(self) -> int: ...

    @property
    def num_features(self) -> int:
        """Of its input: features, or channels."""
        ...

    @property
    def num_classes(self) -> int: ...

    def slot_width(self, slot: int) -> int:
        """Units or channels there."""
        ...

    def shapes(self) -> dict[str, Param]: ...

    def norms(self) -> dict[str, int]:
        """Channels of every BatchNorm, by its name; empty where there is none."""
        ...

    def num_params(self) -> int: ...

    def forward(
        self,
        p: Params,
        x: Tensor,
        slot: SlotFunction,
        units: Units | None = None,
        normalize: Normalize | None = None,
        resume: Resume | None = None,
    ) -> Tensor:
        """Logits `[B, num_classes]` of `x [B, ...]`; without `normalize` BatchNorm takes each batch's statistics."""
        ...


@dataclass(frozen=True)
class MLPHost:
    """input > Linear > S x [h + Linear(ReLU(LayerNorm(h))), slot] > LayerNorm > Linear > logits."""

    num_features: int
    width: int
    num_classes: int
    slots: int

    @property
    def family(self) -> Family:
        return VECTOR

    def slot_width(self, slot: int) -> int:
        return self.width

    def norms(self) -> dict[str, int]:
        return {}

    def shapes(self) -> dict[str, Param]:
        w = self.width
        one, zero = Param((1, w), "one"), Param((1, w), "zero")
        shapes = {"in.w": Param((self.num_features, w), "fan_in"), "in.b": zero}
        for s in range(self.slots):
            shapes |= {f"{s}.gain": one, f"{s}.bias": zero, f"{s}.w": Param((w, w), "fan_in"), f"{s}.b": zero}
        classes = {"out.w": Param((w, self.num_classes), "fan_in"), "out.b": Param((1, self.num_classes), "zero")}
        return shapes | {"out.gain": one, "out.bias": zero} | classes

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
        """Logits `[..., B, num_classes]` of `x [..., B, num_features]`."""
        first, h = resume or (-1, x @ p["in.w"] + p["in.b"])
        for s in range(max(first, 0), self.slots):
            if s != first:
                h = h + torch.relu(layer_norm(h, p[f"{s}.gain"], p[f"{s}.bias"], units)) @ p[f"{s}.w"] + p[f"{s}.b"]
            h = slot(s, h)
        return layer_norm(h, p["out.gain"], p["out.bias"], units) @ p["out.w"] + p["out.b"]


def draw_params(shapes: dict[str, Param], rng: np.random.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """Leaf tensors that require gradients, drawn in the table's order."""
    return {name: torch.tensor(p.draw(rng), dtype=dtype).requires_grad_() for name, p in shapes.items()}
