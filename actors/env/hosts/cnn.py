"""`CNN1dHost` for sequence tasks and `CNN2dHost` for image tasks.

`x` is `[M, C, *space]` and logits are `[M, classes]`; for a stack of E hosts with parameters `[E, ...]`, they are
`[M, E, C, *space]` and `[E, M, classes]`. Slots follow a residual add or a BatchNorm, never a ReLU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actors.blueprints.blueprint import Param, Params
from actors.blueprints.family import IMAGE, SEQUENCE
from actors.env.hosts.host import Host, affine_shapes, classifier_shapes
from actors.layers.batch_norm import Normalize
from actors.layers.convolution import After, classify, convolve, plane, pool_mean, unplane
from actors.layers.layer_norm import Units

STEM_TAPS, TAPS = 5, 3
LEAST_POOLED = 8
"""Sides shorter than this are not pooled."""
RECTIFIED = After(relu=True)


def _batch_norm(name: str, p: Params, h: Tensor, dims: int, normalize: Normalize, after: After) -> Tensor:
    gain, bias = p[f"{name}.gain"].flatten(), p[f"{name}.bias"].flatten()
    return unplane(normalize(name, plane(h, dims), gain, bias, dims, after), h, dims)


class CNN1dHost(Host):
    """A residual 1-D CNN.

    Conv, BatchNorm, max-pool, ReLU, then S times [h + Conv(ReLU(BatchNorm(h))), slot, mean-pool], then BatchNorm,
    ReLU, global mean, Linear.
    """

    family = SEQUENCE

    def norms(self) -> dict[str, int]:
        return dict.fromkeys(("in", *map(str, range(self.slots)), "out"), self.width)

    def shapes(self) -> dict[str, Param]:
        w = self.width
        shapes = {"in.w": Param((w, self.num_features, STEM_TAPS), "fan_in")} | affine_shapes("in", w)
        for s in range(self.slots):
            shapes |= {f"{s}.w": Param((w, w, TAPS), "fan_in")} | affine_shapes(str(s), w)
        return shapes | affine_shapes("out", w) | classifier_shapes(w, self.num_classes)

    def _enter(self, p: Params, x: Tensor, norm: Normalize) -> Tensor:
        return _batch_norm("in", p, convolve(x, p["in.w"], None, 1), 1, norm, After(pool=True, relu=True))

    def _block(self, s: int, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        return h + convolve(_batch_norm(str(s), p, h, 1, norm, RECTIFIED), p[f"{s}.w"], None, 1)

    def _leave(self, h: Tensor) -> Tensor:
        return pool_mean(h, 1) if h.shape[-1] >= LEAST_POOLED else h

    def _classify(self, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        return classify(_batch_norm("out", p, h, 1, norm, RECTIFIED), p["out.w"], p["out.b"], 1)


class CNN2dHost(Host):
    """A plain 2-D CNN: S times [Conv, BatchNorm, max-pool (first two blocks), slot, ReLU], then global mean, Linear.

    The first two blocks have `width` channels, the others 1.5 times as many. Max-pooling and ReLU commute; pooling
    first makes the map at the slot smaller.
    """

    family = IMAGE

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of each block."""
        return tuple(self.width if s < 2 else 3 * self.width // 2 for s in range(self.slots))

    def slot_width(self, slot: int) -> int:
        return self.channels[slot]

    def norms(self) -> dict[str, int]:
        return {str(s): c for s, c in enumerate(self.channels)}

    def shapes(self) -> dict[str, Param]:
        shapes: dict[str, Param] = {}
        before = self.num_features
        for s, c in enumerate(self.channels):
            shapes |= {f"{s}.w": Param((c, before, TAPS, TAPS), "fan_in")} | affine_shapes(str(s), c)
            before = c
        return shapes | classifier_shapes(before, self.num_classes)

    def _block(self, s: int, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        after = After(pool=s < 2 and min(h.shape[-2:]) >= LEAST_POOLED)
        return _batch_norm(str(s), p, convolve(h, p[f"{s}.w"], None, 2), 2, norm, after)

    def _leave(self, h: Tensor) -> Tensor:
        return torch.relu(h)

    def _classify(self, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        return classify(h, p["out.w"], p["out.b"], 2)
