"""The blueprints of the CNN hosts, 1-D and 2-D. Each is the identity at initialization.

`h` is `[M, C, *space]`, or `[M, E, C, *space]` for a stack, with parameters `[E, ...]` (see `layers.convolution`).
No blueprint averages over channels, so padded channels stay 0 without a mask.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.blueprints.blueprint import NOOP, Blueprint, Param, Params, vector
from actors.blueprints.vector import norm_shapes, two_layer_shapes
from actors.layers.convolution import contiguous_stack, fold, pointwise, two_layers
from actors.layers.layer_norm import Units

TAPS = 3


def _norm(dims: int) -> Blueprint:
    """Add a scaled instance normalization (Ulyanov et al., 2016): each channel of each sample is standardized."""

    def forward(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
        gain, bias = ((p["scale"] * p[name]).flatten() for name in ("gain", "bias"))
        return h + F.group_norm(fold(h, dims).contiguous(), len(gain), gain, bias).view(h.shape)

    return Blueprint("norm", norm_shapes, forward)


def _two_layers(name: str, dims: int, hidden: Callable[[int], int], taps: tuple[int, int]) -> Blueprint:
    """Add conv(ReLU(conv(h))), with kernels of `taps` in each dimension and `hidden(width)` channels between."""

    def shapes(width: int) -> dict[str, Param]:
        k = hidden(width)
        first = {"w1": Param((k, width, *(taps[0],) * dims), "fan_in"), "b1": vector(k)}
        return first | {"w2": Param((width, k, *(taps[1],) * dims), "zero"), "b2": vector(width)}

    def forward(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
        return two_layers(h, p, dims)

    return Blueprint(name, shapes, forward)


def _depthwise(dims: int) -> Blueprint:
    """Add a depthwise convolution with two filters per channel, then ReLU and a 1x1 convolution."""

    def shapes(width: int) -> dict[str, Param]:
        return two_layer_shapes(width, 2 * width) | {"w1": Param((2 * width, 1, *(TAPS,) * dims), "fan_in")}

    def forward(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
        return two_layers(h, {**p, "w2": pointwise(p["w2"], dims)}, dims, groups=h.shape[-dims - 1])

    return Blueprint("depthwise", shapes, forward)


def _attention(dims: int) -> Blueprint:
    """Scale channels by squeeze-and-excitation (Hu et al., 2018), which starts at 2 * sigmoid(0) = 1."""

    def forward(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
        h = contiguous_stack(h, dims)
        squeezed = h.flatten(-dims).mean(-1)  # [M, C], or [M, E, C]
        rows = squeezed if squeezed.dim() == 2 else squeezed.transpose(0, 1).contiguous()
        excitation = 2.0 * torch.sigmoid(torch.relu(rows @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"])
        if excitation.requires_grad:  # keep environments outermost, so that sums over rows round alike
            excitation.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        factor = excitation if squeezed.dim() == 2 else excitation.transpose(0, 1)
        return h * factor[(..., *(None,) * dims)]

    return Blueprint("attention", lambda width: two_layer_shapes(width, max(2, width // 2)), forward)


def channel_blueprints(dims: int) -> list[Blueprint]:
    """Return the table of hosts with so many spatial dimensions, in the order of the MLP's table."""
    return [
        NOOP,
        _norm(dims),
        _two_layers("bottleneck", dims, lambda width: max(2, width // 4), (1, 1)),
        _two_layers("conv_light", dims, lambda width: width, (TAPS, 1)),
        _depthwise(dims),
        _attention(dims),
        _two_layers("conv_heavy", dims, lambda width: 2 * width, (TAPS, TAPS)),
    ]
