"""Seeds and blends as kernels, forward and backward.

The parameters of a seed are one vector, in the order of its blueprint's `shapes`, with the gate of its blend last. If
s is the output of a seed and h its input, these kernels compute the change c = s - h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.kernels.jit import inner
from actors.env.kernels.layers import (
    affine,
    affine_input,
    affine_params,
    rectify,
    rectify_input,
    scale_and_shift,
    scale_params,
    scale_rows,
    sigmoid,
    standardize,
    standardize_input,
    sum_rows,
    tanh,
)

Array = NDArray[Any]
NORM, RESIDUAL, GATED, EXCITATION = range(4)
"""Formulas of blueprints (`Blueprint.formula`)."""
ADD, MULTIPLY, GATE = range(3)
"""Blends: indices into `actors.types.actions.BLENDS`."""


@inner
def change(formula: int, hidden: int, q: Array, h: Array, first: Array, second: Array, c: Array) -> None:
    """Compute c [W, B] = s - h; `first` and `second [largest hidden, B]` keep what the backward pass needs."""
    width = h.shape[0]
    if formula == NORM:
        standardize(h, first[:width], second[0])
        scale_and_shift(first[:width], q[:width], q[width : 2 * width], c, False)
        scale_rows(c, q[2 * width : 3 * width])
        return
    n = width * hidden
    w1, b1 = q[:n].reshape(width, hidden), q[n : n + hidden]
    if formula == GATED:
        m = n + hidden
        affine(h, w1, b1, first[:hidden])
        sigmoid(first[:hidden])
        affine(h, q[m : m + n].reshape(width, hidden), q[m + n : 2 * m], second[:hidden])
        product = np.empty((hidden, h.shape[1]), h.dtype)
        for k in range(hidden):
            a, b, out = first[k], second[k], product[k]
            for i in range(out.size):
                out[i] = a[i] * b[i]
        affine(product, q[2 * m : 2 * m + n].reshape(hidden, width), q[2 * m + n : 2 * m + n + width], c)
        return
    affine(h, w1, b1, first[:hidden])
    rectify(first[:hidden])
    m = n + hidden
    affine(first[:hidden], q[m : m + n].reshape(hidden, width), q[m + n : m + n + width], c)
    if formula == EXCITATION:
        one, two = h.dtype.type(1), h.dtype.type(2)
        sigmoid(c)
        for w in range(width):
            row, x, out = second[w], h[w], c[w]
            for i in range(out.size):
                row[i] = out[i]
                out[i] = x[i] * (two * out[i] - one)


@inner
def change_back(
    formula: int,
    hidden: int,
    q: Array,
    h: Array,
    first: Array,
    second: Array,
    dc: Array,
    dh: Array,
    dq: Array,
    with_params: bool,
) -> None:
    """Add the gradient of h to `dh`, given that of the change, `dc`; write `dq` if `with_params`. Overwrite `dc`."""
    width, rows = h.shape
    through = np.empty((width, rows), h.dtype)
    if formula == NORM:
        if with_params:
            # c = scale * (gain * xhat + bias)
            plain = np.empty((width, rows), h.dtype)
            scale_and_shift(first[:width], q[:width], q[width : 2 * width], plain, False)
            for w in range(width):
                total, a, b = h.dtype.type(0), dc[w], plain[w]
                for i in range(rows):
                    total += a[i] * b[i]
                dq[2 * width + w] = total
        scale_rows(dc, q[2 * width : 3 * width])
        if with_params:
            scale_params(first[:width], dc, dq[:width], dq[width : 2 * width])
        scale_rows(dc, q[:width])
        standardize_input(first[:width], second[0], dc)
        _add(dc, dh)
        return
    n = width * hidden
    m = n + hidden
    w1 = q[:n].reshape(width, hidden)
    inner = np.empty((hidden, rows), h.dtype)
    if formula == GATED:
        one = h.dtype.type(1)
        product = np.empty((hidden, rows), h.dtype)
        for k in range(hidden):
            a, b, out = first[k], second[k], product[k]
            for i in range(rows):
                out[i] = a[i] * b[i]
        if with_params:
            affine_params(product, dc, dq[2 * m : 2 * m + n].reshape(hidden, width), dq[2 * m + n : 2 * m + n + width])
        affine_input(dc, q[2 * m : 2 * m + n].reshape(hidden, width), inner)
        for k in range(hidden):  # reuse `product` for the gradient of the gate, `inner` for that of the value
            a, b, d, out = first[k], second[k], inner[k], product[k]
            for i in range(rows):
                out[i] = d[i] * b[i] * a[i] * (one - a[i])
                d[i] = d[i] * a[i]
        if with_params:
            affine_params(h, product, dq[:n].reshape(width, hidden), dq[n:m])
            affine_params(h, inner, dq[m : m + n].reshape(width, hidden), dq[m + n : 2 * m])
        affine_input(product, w1, through)
        _add(through, dh)
        affine_input(inner, q[m : m + n].reshape(width, hidden), through)
        _add(through, dh)
        return
    if formula == EXCITATION:
        one, two = h.dtype.type(1), h.dtype.type(2)
        for w in range(width):
            a, x, d, out = second[w], h[w], dc[w], dh[w]
            for i in range(rows):
                out[i] += d[i] * (two * a[i] - one)
                d[i] = d[i] * x[i] * two * a[i] * (one - a[i])
    if with_params:
        affine_params(first[:hidden], dc, dq[m : m + n].reshape(hidden, width), dq[m + n : m + n + width])
    affine_input(dc, q[m : m + n].reshape(hidden, width), inner)
    rectify_input(first[:hidden], inner)
    if with_params:
        affine_params(h, inner, dq[:n].reshape(width, hidden), dq[n:m])
    affine_input(inner, w1, through)
    _add(through, dh)


@inner
def _add(x: Array, into: Array) -> None:
    for w in range(x.shape[0]):
        row, out = x[w], into[w]
        for i in range(out.size):
            out[i] += row[i]


@inner
def blend_in(blend: int, alpha: float, gate: Array, h: Array, c: Array, gate_value: Array, out: Array) -> None:
    """Compute out [W, B], h with the change c blended in at alpha.

    `multiply` replaces c by its tanh; `gated` stores its gate, after the sigmoid, in `gate_value [B]`.
    """
    real = h.dtype.type
    a = real(alpha)
    width, rows = h.shape
    if blend == MULTIPLY:
        tanh(c, c)
        for w in range(width):
            x, t, y = h[w], c[w], out[w]
            for i in range(rows):
                y[i] = x[i] + x[i] * (a * t[i])
        return
    for i in range(rows):
        gate_value[i] = real(1)
    if blend == GATE:
        for i in range(rows):
            gate_value[i] = gate[width]
        for w in range(width):
            x, weight = h[w], gate[w]
            for i in range(rows):
                gate_value[i] += weight * x[i]
        sigmoid(gate_value.reshape(1, rows))
    for w in range(width):
        x, t, y = h[w], c[w], out[w]
        for i in range(rows):
            y[i] = x[i] + a * gate_value[i] * t[i]


@inner
def blend_back(
    blend: int,
    alpha: float,
    gate: Array,
    h: Array,
    c: Array,
    gate_value: Array,
    d: Array,
    dc: Array,
    dgate: Array,
    with_params: bool,
) -> None:
    """Turn the gradient `d` of the output into that of h that does not pass through the seed, in place.

    Write the gradient of the change to `dc [W, B]` and, if `with_params`, that of the gate to `dgate`.
    """
    real = h.dtype.type
    a, one = real(alpha), real(1)
    width, rows = h.shape
    if blend == MULTIPLY:
        for w in range(width):
            x, t, flow, out = h[w], c[w], d[w], dc[w]
            for i in range(rows):
                out[i] = flow[i] * x[i] * a * (one - t[i] * t[i])
                flow[i] = flow[i] * (one + a * t[i])
        return
    for w in range(width):
        flow, out = d[w], dc[w]
        for i in range(rows):
            out[i] = a * gate_value[i] * flow[i]
    if blend == GATE:
        summed = np.zeros((1, rows), h.dtype)
        for w in range(width):
            t, flow = c[w], d[w]
            for i in range(rows):
                summed[0, i] += t[i] * flow[i]
        for i in range(rows):
            summed[0, i] *= a * gate_value[i] * (one - gate_value[i])
        for w in range(width):
            x, flow, weight, total = h[w], d[w], gate[w], real(0)
            for i in range(rows):
                total += x[i] * summed[0, i]
                flow[i] += weight * summed[0, i]
            if with_params:
                dgate[w] = total
        if with_params:
            sum_rows(summed, dgate[width:])
