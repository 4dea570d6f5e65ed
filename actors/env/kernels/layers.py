"""Layers as kernels, forward and backward: affine maps, LayerNorm and activations.

Names of gradients begin with d. `*_input` computes the gradient of a layer's input, `*_params` of its parameters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from actors.env.kernels.jit import inner, ordered

Array = NDArray[Any]
NORM_EPS = 1e-5


@inner
def affine(x: Array, w: Array, b: Array, y: Array) -> None:
    """Compute y [out, B] = w' x + b for x [in, B], w [in, out], b [out]."""
    np.dot(w.T, x, y)
    for j in range(y.shape[0]):
        row, offset = y[j], b[j]
        for i in range(row.size):
            row[i] += offset


@inner
def affine_input(dy: Array, w: Array, dx: Array) -> None:
    """Compute dx [in, B] = w dy."""
    np.dot(w, dy, dx)


@inner
def affine_params(x: Array, dy: Array, dw: Array, db: Array) -> None:
    """Compute dw [in, out] = x dy' and db [out], the sum of dy over rows of data."""
    np.dot(x, dy.T, dw)
    sum_rows(dy, db)


@inner
def sum_rows(dy: Array, db: Array) -> None:
    """Compute db [out], the sum of dy [out, B] over rows of data."""
    for j in range(dy.shape[0]):
        row = dy[j]
        total = dy.dtype.type(0)
        for i in range(row.size):
            total += row[i]
        db[j] = total


@inner
def standardize(h: Array, xhat: Array, inverse: Array) -> None:
    """Compute xhat [W, B], h with mean 0 and variance 1 in each column, and `inverse [B]`, 1 / deviation."""
    real = h.dtype.type
    width, rows = h.shape
    share = real(1.0 / width)
    mean = np.zeros(rows, h.dtype)
    for w in range(width):
        row = h[w]
        for i in range(rows):
            mean[i] += row[i]
    inverse[:] = real(0)
    for i in range(rows):
        mean[i] *= share
    for w in range(width):
        row, out = h[w], xhat[w]
        for i in range(rows):
            centered = row[i] - mean[i]
            out[i] = centered
            inverse[i] += centered * centered
    for i in range(rows):
        inverse[i] = real(1) / np.sqrt(inverse[i] * share + real(NORM_EPS))
    for w in range(width):
        out = xhat[w]
        for i in range(rows):
            out[i] *= inverse[i]


@inner
def standardize_input(xhat: Array, inverse: Array, d: Array) -> None:
    """Turn the gradient `d` of xhat into the gradient of h, in place."""
    real = d.dtype.type
    width, rows = d.shape
    share = real(1.0 / width)
    mean, along = np.zeros(rows, d.dtype), np.zeros(rows, d.dtype)
    for w in range(width):
        row, x = d[w], xhat[w]
        for i in range(rows):
            mean[i] += row[i]
            along[i] += row[i] * x[i]
    for i in range(rows):
        mean[i] *= share
        along[i] *= share
    for w in range(width):
        row, x = d[w], xhat[w]
        for i in range(rows):
            row[i] = inverse[i] * (row[i] - mean[i] - x[i] * along[i])


@inner
def scale_and_shift(xhat: Array, gain: Array, bias: Array, y: Array, rectified: bool) -> None:
    """Compute y = gain * xhat + bias, then ReLU if `rectified`."""
    zero = y.dtype.type(0)
    for w in range(y.shape[0]):
        row, out, a, b = xhat[w], y[w], gain[w], bias[w]
        if rectified:
            for i in range(out.size):
                value = a * row[i] + b
                out[i] = zero if value < zero else value
        else:
            for i in range(out.size):
                out[i] = a * row[i] + b


@inner
def scale_params(xhat: Array, dy: Array, dgain: Array, dbias: Array) -> None:
    """Compute the gradients of gain and bias."""
    for w in range(dy.shape[0]):
        row, x = dy[w], xhat[w]
        total, along = dy.dtype.type(0), dy.dtype.type(0)
        for i in range(row.size):
            total += row[i]
            along += row[i] * x[i]
        dbias[w], dgain[w] = total, along


@inner
def scale_rows(d: Array, gain: Array) -> None:
    """Multiply each row by its gain, in place."""
    for w in range(d.shape[0]):
        row, a = d[w], gain[w]
        for i in range(row.size):
            row[i] *= a


@inner
def rectify(y: Array) -> None:
    """Apply ReLU in place."""
    zero = y.dtype.type(0)
    for w in range(y.shape[0]):
        row = y[w]
        for i in range(row.size):
            row[i] = zero if row[i] < zero else row[i]


@inner
def rectify_input(y: Array, d: Array) -> None:
    """Turn the gradient `d` of a ReLU's output y into that of its input, in place."""
    zero = y.dtype.type(0)
    for w in range(y.shape[0]):
        row, out = d[w], y[w]
        for i in range(row.size):
            row[i] = row[i] if out[i] > zero else zero


@inner
def sigmoid(x: Array) -> None:
    """Apply the sigmoid in place."""
    one = x.dtype.type(1)
    for w in range(x.shape[0]):
        row = x[w]
        for i in range(row.size):
            row[i] = one / (one + exponential(-row[i]))


@inner
def tanh(x: Array, y: Array) -> None:
    """Compute y = tanh(x); y may be x."""
    one, two = x.dtype.type(1), x.dtype.type(2)
    for w in range(x.shape[0]):
        row, out = x[w], y[w]
        for i in range(row.size):
            out[i] = one - two / (exponential(two * row[i]) + one)


def exponential(x: float) -> float:
    """Return exp(x); in kernels, single precision uses `exponential_single`."""
    return math.exp(x)


@overload(exponential)
def _by_precision(x):  # type: ignore[no-untyped-def]  # overloads are matched by signature, annotations included
    return (lambda x: exponential_single(x)) if x == types.float32 else (lambda x: math.exp(x))


@ordered
def exponential_single(x: Any) -> Any:
    """Return exp(x) to about one unit in the last place, inlined so that loops vectorize.

    x is clamped to [-87, 88] and reduced to |r| <= log(2) / 2 with log(2) in two parts; then a minimax polynomial of
    degree 7 follows (coefficients: Moshier's Cephes).
    """
    if x > np.float32(88.0):
        x = np.float32(88.0)
    if x < np.float32(-87.0):
        x = np.float32(-87.0)
    n = np.floor(x * np.float32(1.44269504088896341) + np.float32(0.5))
    r = x - n * np.float32(0.693359375)
    r = r - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    y = p * r * r + r + np.float32(1.0)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23))
    return y * power.view(np.float32)
