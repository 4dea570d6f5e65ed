"""Seeds and blends as kernels, forward and backward.

The parameters of a seed are one vector, in the order of its blueprint's `shapes`, with the gate of its blend last. If
s is the output of a seed and h its input, these kernels compute the change c = s - h.
"""

from __future__ import annotations

from actors.kernels.decorators import Array
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.hosts.layers import (
    apply_sigmoid,
    apply_tanh,
    rectify,
    rectify_input,
    scale_and_shift,
    scale_params,
    scale_rows,
    standardize,
    standardize_input,
)
from actors.kernels.hosts.products import add_affine_input, affine, affine_input, affine_params, sum_rows
from actors.kernels.vectors import lanes, load, splat, store, total

NORM, RESIDUAL, GATED, EXCITATION = range(4)
"""Formulas of blueprints (`Blueprint.formula`)."""
ADD, MULTIPLY, GATE = range(3)
"""Blends: indices into `actors.types.actions.BLENDS`."""


@inner
def change(formula: int, hidden: int, q: Array, h: Array, first: Array, second: Array, c: Array) -> None:
    """Compute c [W, B] = s - h; `first` and `second [largest hidden, B]` keep what the backward pass needs."""
    width, rows = h.shape
    if formula == NORM:
        standardize(h, first[:width], second[0])
        scale_and_shift(first[:width], q[:width], q[width : 2 * width], c)
        scale_rows(c, q[2 * width : 3 * width])
        return
    n = width * hidden
    m = n + hidden
    affine(h, q[:n], q[n:m], first[:hidden])
    if formula == GATED:
        apply_sigmoid(first[:hidden])
        affine(h, q[m : m + n], q[m + n : 2 * m], second[:hidden])
        _multiply(first[:hidden], second[:hidden], first[hidden : 2 * hidden])
        affine(first[hidden : 2 * hidden], q[2 * m : 2 * m + n], q[2 * m + n : 2 * m + n + width], c)
        return
    rectify(first[:hidden])
    affine(first[:hidden], q[m : m + n], q[m + n : m + n + width], c)
    if formula == EXCITATION:
        one, two = splat(h.dtype.type(1)), splat(h.dtype.type(2))
        apply_sigmoid(c)
        for w in range(width):
            row, x, out = second[w], h[w], c[w]
            for i in range(0, rows, lanes(h)):
                a = load(out, i)
                store(row, i, a)
                store(out, i, load(x, i) * (two * a - one))


@inner
def _multiply(a: Array, b: Array, out: Array) -> None:
    for k in range(a.shape[0]):
        for i in range(0, a.shape[1], lanes(a)):
            store(out[k], i, load(a[k], i) * load(b[k], i))


@inner
def change_back(
    formula: int, hidden: int, q: Array, h: Array, first: Array, second: Array, dc: Array, dh: Array, dq: Array,
    with_params: bool, inside: Array,
) -> None:  # fmt: skip
    """Add the gradient of h to `dh`, given that of the change, `dc`; write `dq` if `with_params`.

    Overwrite `dc` and `inside [2, largest hidden, B]`.
    """
    width, rows = h.shape
    if formula == NORM:
        if with_params:
            # c = scale * (gain * xhat + bias)
            plain = inside[0, :width]
            scale_and_shift(first[:width], q[:width], q[width : 2 * width], plain)
            for w in range(width):
                summed = splat(h.dtype.type(0))
                for i in range(0, rows, lanes(h)):
                    summed = summed + load(dc[w], i) * load(plain[w], i)
                dq[2 * width + w] = total(summed)
        scale_rows(dc, q[2 * width : 3 * width])
        if with_params:
            scale_params(first[:width], dc, dq[:width], dq[width : 2 * width])
        standardize_input(first[:width], second[0], q[:width], dc, dh)
        return
    n = width * hidden
    m = n + hidden
    within = inside[0, :hidden]
    one, two = splat(h.dtype.type(1)), splat(h.dtype.type(2))
    if formula == GATED:
        gates, values, through = first[:hidden], second[:hidden], inside[1, :hidden]
        if with_params:
            product = first[hidden : 2 * hidden]
            affine_params(product, dc, dq[2 * m : 2 * m + n], dq[2 * m + n : 2 * m + n + width])
        affine_input(dc, q[2 * m : 2 * m + n], within)
        for k in range(hidden):  # `through` becomes the gradient before the gate, `within` that of the value
            for i in range(0, rows, lanes(h)):
                a, d = load(gates[k], i), load(within[k], i)
                store(through[k], i, d * load(values[k], i) * a * (one - a))
                store(within[k], i, d * a)
        if with_params:
            affine_params(h, through, dq[:n], dq[n:m])
            affine_params(h, within, dq[m : m + n], dq[m + n : 2 * m])
        add_affine_input(through, q[:n], dh)
        add_affine_input(within, q[m : m + n], dh)
        return
    if formula == EXCITATION:
        for w in range(width):
            for i in range(0, rows, lanes(h)):
                a, d = load(second[w], i), load(dc[w], i)
                store(dh[w], i, load(dh[w], i) + d * (two * a - one))
                store(dc[w], i, d * load(h[w], i) * two * a * (one - a))
    if with_params:
        affine_params(first[:hidden], dc, dq[m : m + n], dq[m + n : m + n + width])
    affine_input(dc, q[m : m + n], within)
    rectify_input(first[:hidden], within)
    if with_params:
        affine_params(h, within, dq[:n], dq[n:m])
    add_affine_input(within, q[:n], dh)


@inner
def blend_in(blend: int, alpha: float, gate: Array, h: Array, c: Array, gate_value: Array, out: Array) -> None:
    """Compute out [W, B], h with the change c blended in at alpha.

    `multiply` replaces c by its tanh; `gated` stores its gate, after the sigmoid, in `gate_value [B]`.
    """
    width, rows = h.shape
    a = splat(h.dtype.type(alpha))
    if blend == MULTIPLY:
        apply_tanh(c)
        for w in range(width):
            for i in range(0, rows, lanes(h)):
                x = load(h[w], i)
                store(out[w], i, x + x * (a * load(c[w], i)))
        return
    for i in range(0, rows, lanes(h)):
        store(gate_value, i, splat(h.dtype.type(1)))
    if blend == GATE:
        for i in range(0, rows, lanes(h)):
            value = splat(gate[width])
            for w in range(width):
                value = value + splat(gate[w]) * load(h[w], i)
            store(gate_value, i, value)
        apply_sigmoid(gate_value.reshape(1, rows))
    for w in range(width):
        for i in range(0, rows, lanes(h)):
            store(out[w], i, load(h[w], i) + a * load(gate_value, i) * load(c[w], i))


@inner
def blend_back(
    blend: int, alpha: float, gate: Array, h: Array, c: Array, gate_value: Array, d: Array, dc: Array, dgate: Array,
    with_params: bool, inside: Array,
) -> None:  # fmt: skip
    """Turn the gradient `d` of the output into that of h that does not pass through the seed, in place.

    Write the gradient of the change to `dc [W, B]` and, if `with_params`, that of the gate to `dgate`. Overwrite
    `inside [W, B]`.
    """
    width, rows = h.shape
    a, one, zero = splat(h.dtype.type(alpha)), splat(h.dtype.type(1)), splat(h.dtype.type(0))
    if blend == MULTIPLY:
        for w in range(width):
            for i in range(0, rows, lanes(h)):
                t, flow = load(c[w], i), load(d[w], i)
                store(dc[w], i, flow * load(h[w], i) * a * (one - t * t))
                store(d[w], i, flow * (one + a * t))
        return
    for w in range(width):
        for i in range(0, rows, lanes(h)):
            store(dc[w], i, a * load(gate_value, i) * load(d[w], i))
    if blend == GATE:
        before_gate = inside[:1]
        for i in range(0, rows, lanes(h)):
            summed, value = zero, load(gate_value, i)
            for w in range(width):
                summed = summed + load(c[w], i) * load(d[w], i)
            store(before_gate[0], i, summed * a * value * (one - value))
        for w in range(width):
            along, weight = zero, splat(gate[w])
            for i in range(0, rows, lanes(h)):
                flow = load(before_gate[0], i)
                along = along + load(h[w], i) * flow
                store(d[w], i, load(d[w], i) + weight * flow)
            if with_params:
                dgate[w] = total(along)
        if with_params:
            sum_rows(before_gate, dgate[width:])
