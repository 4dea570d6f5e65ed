"""`MLPHost`: the host of vector tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from actors.blueprints.blueprint import Param, Params
from actors.blueprints.family import VECTOR, Family
from actors.env.hosts.host import Resume, SlotFunction
from actors.layers.batch_norm import Normalize
from actors.layers.layer_norm import Units, layer_norm


@dataclass(frozen=True)
class MLPHost:
    """A residual MLP: Linear, then S times [h + Linear(ReLU(LayerNorm(h))), slot], then LayerNorm, Linear.

    With parameters `[E, ...]` and `x [E, B, F]`, `forward` runs a stack of E hosts at once.
    """

    num_features: int
    width: int
    num_classes: int
    slots: int

    @property
    def family(self) -> Family:
        return VECTOR

    def slot_width(self, slot: int) -> int:
        return self.width

    def with_width(self, width: int) -> MLPHost:
        return replace(self, width=width)

    def norms(self) -> dict[str, int]:
        return {}

    def shapes(self) -> dict[str, Param]:
        w = self.width
        one, zero = Param((1, w), "one"), Param((1, w), "zero")
        shapes = {"in.w": Param((self.num_features, w), "fan_in"), "in.b": zero}
        for s in range(self.slots):
            shapes |= {f"{s}.gain": one, f"{s}.bias": zero, f"{s}.w": Param((w, w), "fan_in"), f"{s}.b": zero}
        classifier = {"out.w": Param((w, self.num_classes), "fan_in"), "out.b": Param((1, self.num_classes), "zero")}
        return shapes | {"out.gain": one, "out.bias": zero} | classifier

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
        """Return logits `[..., B, num_classes]` of `x [..., B, num_features]`; see `Host.forward`."""
        first, h = resume or (-1, x @ p["in.w"] + p["in.b"])
        for s in range(max(first, 0), self.slots):
            if s != first:
                h = h + torch.relu(layer_norm(h, p[f"{s}.gain"], p[f"{s}.bias"], units)) @ p[f"{s}.w"] + p[f"{s}.b"]
            h = slot(s, h)
        return layer_norm(h, p["out.gain"], p["out.bias"], units) @ p["out.w"] + p["out.b"]
