"""Layers: affine maps, LayerNorm, the functions between them, and what flows back through each."""

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
    """y [out, B] = w' x + b for x [in, B], w [in, out], b [out]."""
    np.dot(w.T, x, y)
    for j in range(y.shape[0]):
        row, offset = y[j], b[j]
        for i in range(row.size):
            row[i] += offset


@inner
def affine_input(dy: Array, w: Array, dx: Array) -> None:
    """dx [in, B] = w dy."""
    np.dot(w, dy, dx)


@inner
def affine_params(x: Array, dy: Array, dw: Array, db: Array) -> None:
    """dw [in, out] = x dy', db [out] = sum over rows of dy."""
    np.dot(x, dy.T, dw)
    sum_rows(dy, db)


@inner
def sum_rows(dy: Array, db: Array) -> None:
    for j in range(dy.shape[0]):
        row = dy[j]
        total = dy.dtype.type(0)
        for i in range(row.size):
            total += row[i]
        db[j] = total


@inner
def standardize(h: Array, xhat: Array, inverse: Array) -> None:
    """xhat [W, B]: each column of h with mean 0 and variance 1; `inverse [B]` keeps 1 / deviation."""
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
            centred = row[i] - mean[i]
            out[i] = centred
            inverse[i] += centred * centred
    for i in range(rows):
        inverse[i] = real(1) / np.sqrt(inverse[i] * share + real(NORM_EPS))
    for w in range(width):
        out = xhat[w]
        for i in range(rows):
            out[i] *= inverse[i]


@inner
def standardize_input(xhat: Array, inverse: Array, d: Array) -> None:
    """In place: `d` with respect to xhat becomes `d` with respect to h."""
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
    """y = gain * xhat + bias, with negative values cut where `rectified`."""
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
    for w in range(dy.shape[0]):
        row, x = dy[w], xhat[w]
        total, along = dy.dtype.type(0), dy.dtype.type(0)
        for i in range(row.size):
            total += row[i]
            along += row[i] * x[i]
        dbias[w], dgain[w] = total, along


@inner
def scale_rows(d: Array, gain: Array) -> None:
    """In place: each row times its gain."""
    for w in range(d.shape[0]):
        row, a = d[w], gain[w]
        for i in range(row.size):
            row[i] *= a


@inner
def rectify(y: Array) -> None:
    zero = y.dtype.type(0)
    for w in range(y.shape[0]):
        row = y[w]
        for i in range(row.size):
            row[i] = zero if row[i] < zero else row[i]


@inner
def rectify_input(y: Array, d: Array) -> None:
    """In place: what flows back through max(., 0), from its output y."""
    zero = y.dtype.type(0)
    for w in range(y.shape[0]):
        row, out = d[w], y[w]
        for i in range(row.size):
            row[i] = row[i] if out[i] > zero else zero


@inner
def sigmoid(x: Array) -> None:
    """In place."""
    one = x.dtype.type(1)
    for w in range(x.shape[0]):
        row = x[w]
        for i in range(row.size):
            row[i] = one / (one + exponential(-row[i]))


@inner
def tanh(x: Array, y: Array) -> None:
    one, two = x.dtype.type(1), x.dtype.type(2)
    for w in range(x.shape[0]):
        row, out = x[w], y[w]
        for i in range(row.size):
            out[i] = one - two / (exponential(two * row[i]) + one)


def exponential(x: float) -> float:
    return math.exp(x)


@overload(exponential)
def _by_precision(x):  # type: ignore[no-untyped-def]  # overloads are matched by signature, annotations included
    return (lambda x: exponential_single(x)) if x == types.float32 else (lambda x: math.exp(x))


@ordered
def exponential_single(x: Any) -> Any:
    """exp in single precision to about one unit in the last place, without a call, so that loops over it vectorise.

    Beyond -87 to 88 it stays what it is there. Reduction to |r| <= log(2) / 2 by a log(2) in two parts, then a minimax
    polynomial of degree 7 (coefficients: Moshier's Cephes).
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
