"""BatchNorm (Ioffe & Szegedy, 2015) as functions: the source of its statistics is an argument of a forward pass.

A `Normalize` takes the name of a norm, a plane `h [M, C, height, width]` (environments folded into C), gain `[C]` and
bias `[C]`, the number of its dimensions in space, and what follows the norm. Only the main pass of the training loop
updates running statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.kernels.cnn.functions import NormalizeBatch, calibration, rescaled
from actors.kernels.cnn.layout import rows_innermost
from actors.layers.convolution import After, keep_channels_last

MOMENTUM, EPS = 0.1, 1e-5
CALIBRATION_ROWS = 128
LANES = 16
"""PyTorch's kernel rounds the channels beyond a multiple of this differently. A pass over a varying number of
environments is padded to a multiple, so that an environment's result does not depend on the others."""


Normalize = Callable[[str, Tensor, Tensor, Tensor, int, After], Tensor]
"""See the top of this file."""


class Moments(NamedTuple):
    """Statistics of one norm."""

    mean: Tensor  # [C], or [E, C] for a stack
    var: Tensor  # of the same shape


Running = Mapping[str, Moments]  # by norm


def fresh(norms: Mapping[str, int], *rows: int, dtype: torch.dtype, device: torch.device | None = None) -> Running:
    """Return the running statistics `[*rows, C]` of norms that have seen no batch, from their channels by name."""
    like = torch.empty(0, dtype=dtype, device=device)
    shapes = {name: (*rows, channels) for name, channels in norms.items()}
    return {name: Moments(like.new_zeros(shape), like.new_ones(shape)) for name, shape in shapes.items()}


def batch_statistics(running: Running | None = None) -> Normalize:
    """Normalize by the statistics of the batch; update those of `running`, if it has the norm."""
    known = running or {}

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor, dims: int, after: After) -> Tensor:
        mean, var = (t.view(-1) for t in known[name]) if name in known else (None, None)
        if rows_innermost(h):
            return _by_kernel(h, gain, bias, mean, var, dims, after)
        if mean is not None:
            return after(F.batch_norm(h, mean, var, gain, bias, True, MOMENTUM, EPS), dims)
        return after(_in_whole_lanes(h, gain, bias), dims)

    return normalize


def row_statistics(running: Running, rows: Tensor) -> Normalize:
    """Normalize by the statistics of the batch, and update `rows` of running statistics `[R, C]`.

    The first environments of the batch have these rows; what further ones have seen is not recorded.
    """

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor, dims: int, after: After) -> Tensor:
        padding = (0 if rows_innermost(h) else -h.shape[1] % LANES) + h.shape[1]
        mean, var = (F.pad(t, (0, padding - len(t))) for t in (buffer[rows].flatten() for buffer in running[name]))
        if rows_innermost(h):
            out = _by_kernel(h, gain, bias, mean, var, dims, after)
        else:
            out = after(_in_whole_lanes(h, gain, bias, mean, var), dims)
        for t, updated in zip(running[name], (mean, var), strict=True):
            t[rows] = updated[: rows.numel() * t.shape[1]].view(rows.numel(), -1)
        return out

    return normalize


def _by_kernel(
    h: Tensor, gain: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None, dims: int, after: After
) -> Tensor:
    """Normalize by the statistics of the batch, and update `mean` and `var`, if given, in place."""
    out: Tensor = NormalizeBatch.apply(h, gain, bias, mean, var, after.window(dims), after.relu, MOMENTUM, EPS)  # type: ignore[no-untyped-call]
    return out


def _in_whole_lanes(
    h: Tensor, gain: Tensor, bias: Tensor, mean: Tensor | None = None, var: Tensor | None = None
) -> Tensor:
    """Normalize `h` with its channels padded to whole `LANES`; `mean` and `var`, if given, are padded and updated."""
    padding = -h.shape[1] % LANES
    if padding == 0:
        return F.batch_norm(h, mean, var, gain, bias, True, MOMENTUM, EPS)
    padded = F.pad(h, (0, 0) * (h.dim() - 2) + (0, padding))
    out = F.batch_norm(padded, mean, var, F.pad(gain, (0, padding)), F.pad(bias, (0, padding)), True, MOMENTUM, EPS)
    return keep_channels_last(out)[:, : len(gain)]


def running_statistics(running: Running) -> Normalize:
    """Normalize by running statistics (evaluation mode)."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor, dims: int, after: After) -> Tensor:
        mean, var = (t.reshape(-1) for t in running[name])
        if rows_innermost(h):
            scale = gain * torch.rsqrt(var + EPS)
            return rescaled(h, scale[:, None], (bias - mean * scale)[:, None], after.window(dims), after.relu)
        return after(F.batch_norm(h, mean, var, gain, bias, False, MOMENTUM, EPS), dims)

    return normalize


Affine = tuple[Tensor, Tensor]
"""(scale, shift) of a norm for V sets of seeds, each [C, V]."""


def calibrating(into: dict[str, Affine], rows: int) -> Normalize:
    """Normalize by the statistics of each set of seeds, `rows` consecutive rows of the batch; store them in `into`."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor, dims: int, after: After) -> Tensor:
        if rows_innermost(h):
            into[name] = calibration(h, gain, bias, len(h) // rows, EPS)
        else:
            moments = [[t.flatten() for t in _moments(part)] for part in torch.split(h, rows)]
            mean, var = (torch.stack(t, 1) for t in zip(*moments, strict=True))
            scale = gain[:, None] * torch.rsqrt(var + EPS)
            into[name] = scale, bias[:, None] - mean * scale
        return calibrated(into, rows)(name, h, gain, bias, dims, after)

    return normalize


def calibrated(by_norm: Mapping[str, Affine], rows: int) -> Normalize:
    """Normalize other rows of the same sets of seeds, in the same order, as `calibrating` recorded."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor, dims: int, after: After) -> Tensor:
        scale, shift = by_norm[name]
        if rows_innermost(h):
            return rescaled(h, scale, shift, after.window(dims), after.relu)
        column = (1, -1, *(1,) * (h.dim() - 2))
        out = torch.empty_like(h)
        for part, target, a, b in zip(torch.split(h, rows), torch.split(out, rows), scale.T, shift.T, strict=True):
            torch.addcmul(b.reshape(column), part, a.reshape(column), out=target)
        return after(out, dims)

    return normalize


def _moments(h: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel, `[1, C, 1, ...]`; `var_mean` is twenty times slower (measured)."""
    batch = (0, *range(2, h.dim()))
    mean = h.mean(batch, keepdim=True)
    return mean, (h - mean).square().mean(batch, keepdim=True)
