"""`MLPHost`: the host of vector tasks."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.blueprints.blueprint import Param, Params, vector
from actors.blueprints.family import VECTOR
from actors.env.hosts.host import Host, affine_shapes, classifier_shapes
from actors.layers.batch_norm import Normalize
from actors.layers.layer_norm import Units, layer_norm


class MLPHost(Host):
    """A residual MLP: Linear, then S times [h + Linear(ReLU(LayerNorm(h))), slot], then LayerNorm, Linear.

    With parameters `[E, ...]` and `x [E, B, F]`, `forward` runs a stack of E hosts at once.
    """

    family = VECTOR

    def shapes(self) -> dict[str, Param]:
        w = self.width
        shapes = {"in.w": Param((self.num_features, w), "fan_in"), "in.b": vector(w)}
        for s in range(self.slots):
            shapes |= affine_shapes(str(s), w) | {f"{s}.w": Param((w, w), "fan_in"), f"{s}.b": vector(w)}
        return shapes | affine_shapes("out", w) | classifier_shapes(w, self.num_classes)

    def _enter(self, p: Params, x: Tensor, norm: Normalize) -> Tensor:
        return x @ p["in.w"] + p["in.b"]

    def _block(self, s: int, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        return h + torch.relu(layer_norm(h, p[f"{s}.gain"], p[f"{s}.bias"], units)) @ p[f"{s}.w"] + p[f"{s}.b"]

    def _classify(self, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        return layer_norm(h, p["out.gain"], p["out.bias"], units) @ p["out.w"] + p["out.b"]
