"""Layers and their gradients: linear, and LayerNorm with ReLU. Gradients are added to what their arrays hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.kernels.decorators import Array, inner
from actors.kernels.matmul import PANEL, matmul
from actors.kernels.policy.sizes import Weights

BLOCK = 256
"""Steps whose gradients with respect to weights are summed in one product, so that what it reads stays in the cache."""


ADD = -1
"""In the place of a bias: add to what the outputs hold."""


@inner
def linear(
    w: Weights, index: int, column: int, inputs: int, bias: int, x: Array, x0: int, xr: int, y: Array, y0: int, yr: int,
    n: int,
) -> None:  # fmt: skip
    """Compute n rows `y = x w' + b`, where w are the columns of matrix `index` that begin at `column`, one for each of
    the inputs, and b is the parameter `bias`."""
    first, panel, outputs = w.table[index, 0] + column * PANEL, PANEL * w.table[index, 2], w.table[index, 1]
    if bias == ADD:
        matmul(y, y0, yr, x, x0, xr, 1, w.flat, first, PANEL, panel, inputs, y, y0, yr, n, outputs)
    else:
        b = w.table[bias, 0]
        matmul(w.flat, b, 0, x, x0, xr, 1, w.flat, first, PANEL, panel, inputs, y, y0, yr, n, outputs)


@inner
def weight_gradient(
    dy: Array, d0: int, dr: int, x: Array, x0: int, xr: int, n: int, inputs: int, outputs: int, grad: Array,
    column: int, stride: int,
) -> None:  # fmt: skip
    """Add the gradient with respect to weights to the columns of `grad [outputs, stride]` that begin at `column`."""
    for first in range(0, n, BLOCK):
        part = min(BLOCK, n - first)
        matmul(
            grad, column, stride, dy, d0 + first * dr, 1, dr, x, x0 + first * xr, xr, PANEL, part, grad, column, stride,
            outputs, inputs,
        )  # fmt: skip


@inner
def bias_gradient(dy: Array, d0: int, dr: int, n: int, outputs: int, grad: Array) -> None:
    """Add the sums of n rows of `dy` to `grad [outputs]`."""
    for i in range(n):
        at = d0 + i * dr
        for j in range(outputs):
            grad[j] += dy[at + j]


@inner
def input_gradient(
    w: Array, column: int, stride: int, dy: Array, d0: int, dr: int, dx: Array, x0: int, xr: int, n: int, inputs: int,
    outputs: int,
) -> None:  # fmt: skip
    """Add the gradient with respect to n rows of inputs to `dx`."""
    matmul(dx, x0, xr, dy, d0, dr, 1, w, column, stride, PANEL, outputs, dx, x0, xr, n, inputs)


_EPS = np.float32(1e-5)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@inner
def normalize(x: Array, hat: Array) -> Any:
    """Write LayerNorm of `x`, before gain and shift, to `hat`; return the reciprocal of the deviation."""
    width = x.size
    share = np.float32(1.0 / width)
    mean = _ZERO
    for j in range(width):
        mean += x[j]
    mean *= share
    variance = _ZERO
    for j in range(width):
        centered = x[j] - mean
        variance += centered * centered
    inverse = _ONE / np.sqrt(variance * share + _EPS)
    for j in range(width):
        hat[j] = (x[j] - mean) * inverse
    return inverse


@inner
def normalize_gradient(dy: Array, hat: Array, inverse: Any, gain: Array, dgain: Array, dshift: Array) -> None:
    """Replace `dy`, the gradient with respect to the output of a LayerNorm, by that with respect to its input."""
    width = dy.size
    share = np.float32(1.0 / width)
    mean, along = _ZERO, _ZERO
    for j in range(width):
        dgain[j] += dy[j] * hat[j]
        dshift[j] += dy[j]
        dy[j] *= gain[j]
        mean += dy[j]
        along += dy[j] * hat[j]
    mean, along = mean * share, along * share
    for j in range(width):
        dy[j] = inverse * (dy[j] - mean - hat[j] * along)


@inner
def rectify_gradient(dy: Array, d0: int, y: Array, y0: int, count: int) -> None:
    """Zero the gradient where the output `y` of a ReLU is not positive."""
    for j in range(count):
        dy[d0 + j] = dy[d0 + j] if y[y0 + j] > _ZERO else _ZERO
