"""Convolution and its company, for one environment and for many folded into the channels.

One environment's tensors are `[M, C, *space]`, a stack's `[M, E, C, *space]`: with E and C side by side a stack is a
batch with E * C channels, and every operation on it is the plain one with E groups.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 8
"""Grouped convolutions are fast where each group has whole multiples of it."""


def fold(h: Tensor, dims: int) -> Tensor:
    """`[M, C, *space]` as it is, `[M, E, C, *space]` as `[M, E * C, *space]`."""
    return h.flatten(1, h.dim() - dims - 1)


def unfold(flat: Tensor, like: Tensor) -> Tensor:
    """Undo `fold`: the environments that `like` has."""
    return flat if flat.dim() == like.dim() else split(flat, 1, like.shape[1])


def split(t: Tensor, dim: int, parts: int) -> Tensor:
    """Dimension `dim` as `parts` and what is left."""
    return t.reshape(*t.shape[:dim], parts, t.shape[dim] // parts, *t.shape[dim + 1 :])


def convolve(h: Tensor, kernel: Tensor, bias: Tensor | None, dims: int, groups: int = 1) -> Tensor:
    """Same-size convolution: `kernel [out, in / groups, *taps]`, `bias [1, out]`, each with E in front for a stack."""
    conv = F.conv1d if dims == 1 else F.conv2d
    offset = None if bias is None else bias.flatten()
    padding = kernel.shape[-1] // 2
    if h.dim() == dims + 2:
        return conv(h, kernel, offset, padding=padding, groups=groups)
    envs, out = h.shape[1], kernel.shape[1]
    if groups == 1:
        more_out, more_in = -out % LANES, -kernel.shape[2] % LANES
        if more_out or more_in:
            kernel = F.pad(kernel, (0, 0) * dims + (0, more_in, 0, more_out))
            h = F.pad(h, (0, 0) * dims + (0, more_in)) if more_in else h
            offset = None if bias is None else F.pad(bias, (0, more_out)).flatten()
    flat = conv(h.flatten(1, 2), kernel.flatten(0, 1), offset, padding=padding, groups=envs * groups)
    return split(flat, 1, envs)[:, :, :out]


def pointwise(h: Tensor, matrix: Tensor, bias: Tensor | None, dims: int) -> Tensor:
    """1x1 convolution by a `matrix [in, out]`."""
    return convolve(h, matrix.mT[(..., *(None,) * dims)], bias, dims)


def per_channel(vector: Tensor, dims: int) -> Tensor:
    """`[1, C]` (with E in front for a stack) so that it broadcasts over rows and space."""
    return vector.squeeze(-2)[(..., *(None,) * dims)]


def pool_max(h: Tensor, dims: int) -> Tensor:
    """Maximum of two, or of two by two; a last odd row or column is left out."""
    if torch.is_grad_enabled():
        flat = fold(h, dims)
        return unfold(F.max_pool1d(flat, 2) if dims == 1 else F.max_pool2d(flat, 2), h)
    for dim in range(-dims, 0):  # the same values, and without the indices that gradients need it is vectorised
        pairs = split(h.narrow(dim, 0, h.shape[dim] // 2 * 2), h.dim() + dim, h.shape[dim] // 2)
        h = torch.maximum(*pairs.unbind(dim)).contiguous()
    return h


def pool_mean(h: Tensor, dims: int) -> Tensor:
    flat = fold(h, dims)
    return unfold(F.avg_pool1d(flat, 2) if dims == 1 else F.avg_pool2d(flat, 2), h)


def classify(h: Tensor, weight: Tensor, bias: Tensor, dims: int) -> Tensor:
    """Global mean and a linear layer: `[M, classes]` of `[M, C, *space]`, `[E, M, classes]` of `[M, E, C, *space]`."""
    pooled = h.flatten(-dims).mean(-1)
    return (pooled if h.dim() == dims + 2 else pooled.transpose(0, 1)) @ weight + bias
