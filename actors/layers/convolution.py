"""Convolution and pooling for one environment, and for a stack of environments folded into the channels.

Hidden tensors are `[M, C, *space]` for one environment and `[M, E, C, *space]` for a stack. Folding E into C makes a
stack an ordinary batch with E * C channels, on which every operation has E groups. Operations work on planes
`[M, E * C, height, width]`; a sequence has height 1.

On a CPU, a stack in single precision has rows of data innermost in memory, and is computed by the kernels of
`actors.kernels.cnn`. Other tensors on a CPU use PyTorch's operations on planes that are channels-last in memory, which
makes convolution, norms and pooling two to five times faster (measured). Sums over rows or space use the contiguous
order instead, since channels-last sums round depending on the position of a channel among the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.kernels.cnn.layout import rows_innermost, suits, with_rows_innermost


class After(NamedTuple):
    """What follows a norm: max-pooling by 2 in each dimension, where a last odd row or column is dropped; then ReLU."""

    pool: bool = False
    relu: bool = False

    def window(self, dims: int) -> tuple[int, int]:
        """Return the window of the pooling of a plane."""
        return _window(dims) if self.pool else (1, 1)

    def __call__(self, flat: Tensor, dims: int) -> Tensor:
        """Apply both to a plane."""
        flat = keep_channels_last(F.max_pool2d(flat, _window(dims))) if self.pool else flat
        return torch.relu(flat) if self.relu else flat


def _kernels() -> Any:
    """Return the kernels. The first stack imports them: Numba takes long to import, and a user's model needs none."""
    from actors.kernels.cnn import functions

    return functions


def fold(h: Tensor, dims: int) -> Tensor:
    """Fold environments into channels: `[M, E * C, *space]`."""
    return h.flatten(1, h.dim() - dims - 1)


def plane(h: Tensor, dims: int) -> Tensor:
    """Return `h` as a plane `[M, E * C, height, width]`, on a CPU with the channels or the rows of data innermost."""
    if with_kernels(h, dims):
        h = with_rows_innermost(h)
    flat = fold(h, dims)
    if dims == 1:
        flat = flat.unsqueeze(2)
    return _channels_last(flat) if flat.is_cpu and not rows_innermost(flat) else flat


def with_kernels(h: Tensor, dims: int) -> bool:
    """Return whether the kernels of `actors.kernels.cnn` compute with `h`: a stack in single precision on a CPU."""
    return h.dim() == dims + 3 and suits(h)


def keep_channels_last(flat: Tensor) -> Tensor:
    """Make the gradient of a plane channels-last too, so that it is not reordered by each operation."""
    if flat.requires_grad and flat.is_cpu and flat.dim() == 4 and not rows_innermost(flat):
        flat.register_hook(_channels_last)  # type: ignore[no-untyped-call]
    return flat


def _channels_last(flat: Tensor) -> Tensor:
    return flat.contiguous(memory_format=torch.channels_last)


def unplane(flat: Tensor, stack: Tensor, dims: int) -> Tensor:
    """Undo `plane`, for a tensor with the environments of `stack`."""
    flat = keep_channels_last(flat)
    flat = flat.squeeze(2) if dims == 1 else flat
    return flat if stack.dim() == dims + 2 else flat.reshape(len(flat), stack.shape[1], -1, *flat.shape[2:])


def contiguous_stack(h: Tensor, dims: int) -> Tensor:
    """Return a stack contiguous or with rows of data innermost, so that sums over rows and space round alike for every
    environment."""
    return h if h.dim() == dims + 2 or rows_innermost(h) else h.contiguous()


def convolve(h: Tensor, kernel: Tensor, bias: Tensor | None, dims: int, groups: int = 1) -> Tensor:
    """Convolve with same padding: `kernel [out, in / groups, *taps]`, `bias [1, out]`, each `[E, ...]` for a stack."""
    if with_kernels(h, dims):
        apply, offset = _kernels().Convolve.apply, None if bias is None else bias[:, 0]
        if dims == 2:
            return apply(h, kernel, offset, groups)  # type: ignore[no-any-return]
        return apply(h.unsqueeze(3), kernel.unsqueeze(3), offset, groups).squeeze(3)  # type: ignore[no-any-return]
    envs = 1 if h.dim() == dims + 2 else h.shape[1]
    taps = kernel.flatten(0, 1) if h.dim() > dims + 2 else kernel
    half = taps.shape[-1] // 2
    taps, padding = (taps.unsqueeze(-2), (0, half)) if dims == 1 else (taps, (half, half))
    offset = None if bias is None else bias.flatten()
    return unplane(F.conv2d(plane(h, dims), taps, offset, padding=padding, groups=envs * groups), h, dims)


def pointwise(matrix: Tensor, dims: int) -> Tensor:
    """Return `matrix [in, out]` as the kernel of a 1x1 convolution."""
    return matrix.mT[(..., *(None,) * dims)]


def two_layers(h: Tensor, p: Mapping[str, Tensor], dims: int, groups: int = 1) -> Tensor:
    """Add conv(ReLU(conv(h))) to `h`, with kernels `w1`, `w2` and biases `b1`, `b2`; the first one has groups."""
    if with_kernels(h, dims):
        w1, w2, b1, b2 = p["w1"], p["w2"], p["b1"][:, 0], p["b2"][:, 0]
        if dims == 2:
            return _kernels().TwoLayers.apply(h, w1, b1, w2, b2, groups)  # type: ignore[no-any-return]
        y: Tensor = _kernels().TwoLayers.apply(h.unsqueeze(3), w1.unsqueeze(3), b1, w2.unsqueeze(3), b2, groups)
        return y.squeeze(3)
    hidden = torch.relu(convolve(h, p["w1"], p["b1"], dims, groups))
    return h + convolve(hidden, p["w2"], p["b2"], dims)


def pool_mean(h: Tensor, dims: int) -> Tensor:
    """Average-pool by 2 in each dimension; a last odd row or column is dropped."""
    flat = plane(h, dims)
    if rows_innermost(flat):
        return unplane(_kernels().WindowMean.apply(flat, _window(dims)), h, dims)
    return unplane(F.avg_pool2d(flat, _window(dims)), h, dims)


def _window(dims: int) -> tuple[int, int]:
    return (1, 2) if dims == 1 else (2, 2)


def classify(h: Tensor, weight: Tensor, bias: Tensor, dims: int) -> Tensor:
    """Apply a global mean and a linear layer; return `[M, classes]`, or `[E, M, classes]` for a stack."""
    if with_kernels(h, dims):
        return _kernels().Classify.apply(h, weight, bias[:, 0])  # type: ignore[no-any-return]
    pooled = contiguous_stack(h, dims).flatten(-dims).mean(-1)
    return (pooled if h.dim() == dims + 2 else pooled.transpose(0, 1)) @ weight + bias
