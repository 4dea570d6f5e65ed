"""Convolution and its company, for one environment and for many folded into the channels.

One environment's tensors are `[M, C, *space]`, a stack's `[M, E, C, *space]`: with E and C side by side a stack is a
batch with E * C channels, and every operation on it is the plain one with E groups. Each works on planes
`[M, E * C, height, width]`; a sequence is a plane of height 1. On the CPU planes lie with their channels last in
memory, with which convolution, norms and pooling are two to five times faster there (measured). Sums over rows or space
are not taken in that order: what a channel's would round to depends on where among the others it lies.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def fold(h: Tensor, dims: int) -> Tensor:
    """`[M, C, *space]` as it is, `[M, E, C, *space]` as `[M, E * C, *space]`."""
    return h.flatten(1, h.dim() - dims - 1)


def plane(h: Tensor, dims: int) -> Tensor:
    """`[M, C, *space]` or `[M, E, C, *space]` as `[M, E * C, height, width]`, in the memory format of its device."""
    flat = fold(h, dims)
    if dims == 1:
        flat = flat.unsqueeze(2)
    return _channels_last(flat) if flat.is_cpu else flat


def in_order(flat: Tensor) -> Tensor:
    """A plane whose gradient will lie in memory as it does: else every operation on its way would bring it to order."""
    if flat.requires_grad and flat.is_cpu and flat.dim() == 4:
        flat.register_hook(_channels_last)  # type: ignore[no-untyped-call]
    return flat


def _channels_last(flat: Tensor) -> Tensor:
    return flat.contiguous(memory_format=torch.channels_last)


def unplane(flat: Tensor, like: Tensor, dims: int) -> Tensor:
    """Undo `plane`: the environments that `like` has."""
    flat = in_order(flat)
    flat = flat.squeeze(2) if dims == 1 else flat
    return flat if like.dim() == dims + 2 else split(flat, 1, like.shape[1])


def channels_first(h: Tensor, dims: int) -> Tensor:
    """A stack's `h` in the order in which sums over rows and space keep environments apart."""
    return h if h.dim() == dims + 2 else h.contiguous()


def split(t: Tensor, dim: int, parts: int) -> Tensor:
    """Dimension `dim` as `parts` and what is left."""
    return t.reshape(*t.shape[:dim], parts, t.shape[dim] // parts, *t.shape[dim + 1 :])


def convolve(h: Tensor, kernel: Tensor, bias: Tensor | None, dims: int, groups: int = 1) -> Tensor:
    """Same-size convolution: `kernel [out, in / groups, *taps]`, `bias [1, out]`, each with E in front for a stack."""
    envs = 1 if h.dim() == dims + 2 else h.shape[1]
    taps = kernel.flatten(0, 1) if h.dim() > dims + 2 else kernel
    half = taps.shape[-1] // 2
    taps, padding = (taps.unsqueeze(-2), (0, half)) if dims == 1 else (taps, (half, half))
    offset = None if bias is None else bias.flatten()
    return unplane(F.conv2d(plane(h, dims), taps, offset, padding=padding, groups=envs * groups), h, dims)


def pointwise(h: Tensor, matrix: Tensor, bias: Tensor | None, dims: int) -> Tensor:
    """1x1 convolution by a `matrix [in, out]`."""
    return convolve(h, matrix.mT[(..., *(None,) * dims)], bias, dims)


def pool_max(h: Tensor, dims: int) -> Tensor:
    """Maximum of two, or of two by two; a last odd row or column is left out."""
    return unplane(F.max_pool2d(plane(h, dims), _window(dims)), h, dims)


def pool_mean(h: Tensor, dims: int) -> Tensor:
    return unplane(F.avg_pool2d(plane(h, dims), _window(dims)), h, dims)


def _window(dims: int) -> tuple[int, int]:
    return (1, 2) if dims == 1 else (2, 2)


def classify(h: Tensor, weight: Tensor, bias: Tensor, dims: int) -> Tensor:
    """Global mean and a linear layer: `[M, classes]` of `[M, C, *space]`, `[E, M, classes]` of `[M, E, C, *space]`."""
    pooled = channels_first(h, dims).flatten(-dims).mean(-1)
    return (pooled if h.dim() == dims + 2 else pooled.transpose(0, 1)) @ weight + bias
