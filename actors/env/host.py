"""The MLP host: a residual network with a slot after every residual add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from actors.env.blueprints import Param, Params, Units, layer_norm

SlotFunction = Callable[[int, Tensor], Tensor]
"""(slot, hidden) -> hidden: what grows there, the identity where nothing does."""


@dataclass(frozen=True)
class MLPHost:
    """input > Linear > S x [h + Linear(ReLU(LayerNorm(h))), slot] > LayerNorm > Linear > logits."""

    num_features: int
    width: int
    num_classes: int
    slots: int

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

    def forward(self, p: Params, x: Tensor, slot: SlotFunction, units: Units | None = None) -> Tensor:
        """Logits `[..., B, num_classes]` of `x [..., B, num_features]`."""
        h = x @ p["in.w"] + p["in.b"]
        for s in range(self.slots):
            h = h + torch.relu(layer_norm(h, p[f"{s}.gain"], p[f"{s}.bias"], units)) @ p[f"{s}.w"] + p[f"{s}.b"]
            h = slot(s, h)
        return layer_norm(h, p["out.gain"], p["out.bias"], units) @ p["out.w"] + p["out.b"]


def draw_params(shapes: dict[str, Param], rng: np.random.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """Leaf tensors that require gradients, drawn in the table's order."""
    return {name: torch.tensor(p.draw(rng), dtype=dtype).requires_grad_() for name, p in shapes.items()}
