"""LayerNorm and activations as kernels, forward and backward; `products.py` holds affine maps.

Names of gradients begin with d. `*_input` computes the gradient of a layer's input, `*_params` of its parameters. The
rows of hidden tensors have a multiple of `PADDING` numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.kernels.decorators import Array
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.vectors import lanes, load, rectified, root, sigmoid, splat, store, tanh, total, where_positive

NORM_EPS = 1e-5


@inner
def standardize(h: Array, xhat: Array, inverse: Array) -> None:
    """Compute xhat [W, B], h with mean 0 and variance 1 in each column, and `inverse [B]`, 1 / deviation."""
    real = h.dtype.type
    width, rows = h.shape
    share, eps, zero, one = splat(real(1.0 / width)), splat(real(NORM_EPS)), splat(real(0)), splat(real(1))
    for i in range(0, rows, lanes(h)):
        mean, squares = zero, zero
        for w in range(width):
            mean = mean + load(h[w], i)
        mean = mean * share
        for w in range(width):
            centered = load(h[w], i) - mean
            squares = squares + centered * centered
        scale = one / root(squares * share + eps)
        store(inverse, i, scale)
        for w in range(width):
            store(xhat[w], i, (load(h[w], i) - mean) * scale)


@inner
def standardize_input(xhat: Array, inverse: Array, gain: Array, dy: Array, dh: Array) -> None:
    """Add to dh the gradient of h, given that of gain * xhat + bias."""
    real = dh.dtype.type
    width, rows = dh.shape
    share, zero = splat(real(1.0 / width)), splat(real(0))
    for i in range(0, rows, lanes(dh)):
        mean, along = zero, zero
        for w in range(width):
            d = splat(gain[w]) * load(dy[w], i)
            mean = mean + d
            along = along + d * load(xhat[w], i)
        mean, along = mean * share, along * share
        scale = load(inverse, i)
        for w in range(width):
            d = splat(gain[w]) * load(dy[w], i)
            store(dh[w], i, load(dh[w], i) + scale * (d - mean - load(xhat[w], i) * along))


@inner
def scale_and_shift(xhat: Array, gain: Array, bias: Array, y: Array) -> None:
    """Compute y = gain * xhat + bias."""
    for w in range(y.shape[0]):
        row, out, a, b = xhat[w], y[w], splat(gain[w]), splat(bias[w])
        for i in range(0, out.size, lanes(y)):
            store(out, i, a * load(row, i) + b)


@inner
def rectified_scale_and_shift(xhat: Array, gain: Array, bias: Array, y: Array) -> None:
    """Compute y = ReLU(gain * xhat + bias)."""
    for w in range(y.shape[0]):
        row, out, a, b = xhat[w], y[w], splat(gain[w]), splat(bias[w])
        for i in range(0, out.size, lanes(y)):
            store(out, i, rectified(a * load(row, i) + b))


@inner
def scale_params(xhat: Array, dy: Array, dgain: Array, dbias: Array) -> None:
    """Compute the gradients of gain and bias."""
    zero = splat(dy.dtype.type(0))
    for w in range(dy.shape[0]):
        row, x = dy[w], xhat[w]
        summed, along = zero, zero
        for i in range(0, row.size, lanes(dy)):
            d = load(row, i)
            summed = summed + d
            along = along + d * load(x, i)
        dbias[w], dgain[w] = total(summed), total(along)


@inner
def scale_rows(d: Array, gain: Array) -> None:
    """Multiply each row by its gain, in place."""
    for w in range(d.shape[0]):
        row, a = d[w], splat(gain[w])
        for i in range(0, row.size, lanes(d)):
            store(row, i, load(row, i) * a)


@inner
def copy(x: Array, into: Array) -> None:
    """Copy a tensor."""
    for w in range(x.shape[0]):
        row, out = x[w], into[w]
        for i in range(0, out.size, lanes(x)):
            store(out, i, load(row, i))


@inner
def rectify_input(y: Array, d: Array) -> None:
    """Turn the gradient `d` of a ReLU's output y into that of its input, in place."""
    for w in range(y.shape[0]):
        row, out = d[w], y[w]
        for i in range(0, row.size, lanes(y)):
            store(row, i, where_positive(load(out, i), load(row, i)))


def _in_place(function: Any) -> Any:
    """Return the kernel that applies a function of vectors to a tensor, in place."""

    @inner
    def apply(x: Array) -> None:
        for w in range(x.shape[0]):
            row = x[w]
            for i in range(0, row.size, lanes(x)):
                store(row, i, function(load(row, i)))

    return apply


rectify, apply_sigmoid, apply_tanh = map(_in_place, (rectified, sigmoid, tanh))


@inner
def norm(x: Array) -> float:
    """Return the Euclidean norm of x [N, B]."""
    squares = splat(x.dtype.type(0))
    for n in range(x.shape[0]):
        row = x[n]
        for i in range(0, row.size, lanes(x)):
            v = load(row, i)
            squares = squares + v * v
    return float(np.sqrt(total(squares)))
