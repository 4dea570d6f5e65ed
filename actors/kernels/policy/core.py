"""The core, an LSTM over whole sequences or a feedforward network, and its gradients.

The steps of all sequences are in the order of time: those of the longest sequence come first at each time, so that the
sequences that go on are always the first ones, and nothing is padded.
"""

from __future__ import annotations

import numpy as np

from actors.kernels.decorators import Array, inner
from actors.kernels.policy.functions import hyperbolic_tangent, sigmoid
from actors.kernels.policy.layers import ADD, bias_gradient, input_gradient, linear, rectify_gradient, weight_gradient
from actors.kernels.policy.sizes import (
    Activations,
    NetShape,
    Parameters,
    Weights,
    first_core,
    floats,
    row_width,
    rows_of,
)

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@inner
def run_core(
    z: NetShape, a: Activations, w: Weights, times: Array, rows: Array, h0: Array, c0: Array, act: Array
) -> None:
    """Compute the core's outputs. `times [T + 1]` are the places where each time's steps begin; `rows [R]` the row of
    `h0` and `c0`, each `[layers, rows, hidden]`, of each sequence."""
    n, hidden = times[-1], z.hidden
    for layer in range(z.layers):
        last = layer + 1 == z.layers
        to, stride = (a.out, hidden) if last else (rows_of(z, a, n, layer + 1), row_width(z, 1))
        if z.recurrent:
            _lstm(z, a, w, layer, times, rows, h0, c0, act)
            _copy(act, a.out, hidden, act, to, stride, n, hidden)
            continue
        index, inputs = first_core(z) + 2 * layer, row_width(z, layer)
        linear(w, index, 0, inputs, index + 1, act, rows_of(z, a, n, layer), inputs, act, to, stride, n)
        for p in range(n):
            for j in range(to + p * stride, to + p * stride + hidden):
                act[j] = _ZERO if act[j] < _ZERO else act[j]


@inner
def keep_state(z: NetShape, a: Activations, rows: Array, act: Array, h: Array, c: Array) -> None:
    """Write the state after a single step of each sequence to its row of `h` and `c`."""
    n, hidden = rows.size, z.hidden
    for layer in range(z.layers if z.recurrent else 0):
        last = layer + 1 == z.layers
        x0, stride = (a.out, hidden) if last else (rows_of(z, a, n, layer + 1), row_width(z, 1))
        cells = a.cells + layer * n * hidden
        for i in range(n):
            h[layer, rows[i]] = act[x0 + i * stride :][:hidden]
            c[layer, rows[i]] = act[cells + i * hidden :][:hidden]


@inner
def _copy(x: Array, x0: int, xr: int, y: Array, y0: int, yr: int, rows: int, width: int) -> None:
    if y0 != x0:
        for p in range(rows):
            y[y0 + p * yr : y0 + p * yr + width] = x[x0 + p * xr : x0 + p * xr + width]


@inner
def _lstm(
    z: NetShape, a: Activations, w: Weights, layer: int, times: Array, rows: Array, h0: Array, c0: Array, act: Array
) -> None:
    """Run one layer; its outputs are in `act[a.out:]`."""
    n, hidden, stride, index = times[-1], z.hidden, row_width(z, layer), first_core(z) + 4 * layer
    inputs, x0 = stride - hidden, rows_of(z, a, n, layer)
    start = layer * n * hidden
    gates, cells, squashed = a.gates + 4 * start, a.cells + start, a.squashed + start
    linear(w, index, 0, inputs, index + 2, act, x0, stride, act, gates, 4 * hidden, n)
    for t in range(times.size - 1):
        first, count = times[t], times[t + 1] - times[t]
        for i in range(count):
            at = x0 + (first + i) * stride + inputs
            if t == 0:
                act[at : at + hidden] = h0[layer, rows[i]]
            else:
                before = a.out + (times[t - 1] + i) * hidden
                act[at : at + hidden] = act[before : before + hidden]
        present = gates + first * 4 * hidden
        linear(w, index + 1, 0, hidden, ADD, act, x0 + first * stride + inputs, stride, act, present, 4 * hidden, count)
        for i in range(count):
            p = first + i
            c = c0[layer, rows[i]] if t == 0 else act[cells + (times[t - 1] + i) * hidden :][:hidden]
            _cell(
                act[present + i * 4 * hidden : present + (i + 1) * 4 * hidden], c, act[cells + p * hidden :][:hidden],
                act[squashed + p * hidden :][:hidden], act[a.out + p * hidden :][:hidden],
            )  # fmt: skip


@inner
def _cell(gates: Array, c: Array, new_c: Array, squashed: Array, h: Array) -> None:
    """Apply the nonlinearities of the gates (input, forget, candidate, output) in place; compute c, tanh c and h."""
    width = h.size
    i, f, g, o = gates[:width], gates[width : 2 * width], gates[2 * width : 3 * width], gates[3 * width :]
    for j in range(width):
        i[j] = sigmoid(i[j])
    for j in range(width):
        f[j] = sigmoid(f[j])
    for j in range(width):
        g[j] = hyperbolic_tangent(g[j])
    for j in range(width):
        o[j] = sigmoid(o[j])
    for j in range(width):
        new_c[j] = f[j] * c[j] + i[j] * g[j]
    for j in range(width):
        squashed[j] = hyperbolic_tangent(new_c[j])
    for j in range(width):
        h[j] = o[j] * squashed[j]


@inner
def core_gradient(
    z: NetShape, a: Activations, params: Parameters, times: Array, rows: Array, c0: Array, act: Array,
    dout: Array, drows: Array, grads: Parameters,
) -> None:  # fmt: skip
    """Write the gradient with respect to the core's inputs to `drows [N, core_input]`, and add those of the parameters.
    `dout [N, hidden]`, that with respect to the outputs, is overwritten."""
    n, hidden = times[-1], z.hidden
    dgates = np.empty(n * 4 * hidden if z.recurrent else 0, np.float32)
    for layer in range(z.layers - 1, -1, -1):
        stride, x0 = row_width(z, layer), rows_of(z, a, n, layer)
        inputs = stride - hidden if z.recurrent else stride
        if z.recurrent:
            index, width, d = first_core(z) + 4 * layer, 4 * hidden, dgates
            _lstm_gradient(z, a, floats(params, index + 1), layer, times, rows, c0, act, dout, dgates)
            dw = floats(grads, index + 1)
            weight_gradient(d, 0, width, act, x0 + inputs, stride, n, hidden, width, dw, 0, hidden)
            bias_gradient(d, 0, width, n, width, floats(grads, index + 2))
            bias_gradient(d, 0, width, n, width, floats(grads, index + 3))
        else:
            index, width, d = first_core(z) + 2 * layer, hidden, dout
            y0 = a.out if layer + 1 == z.layers else rows_of(z, a, n, layer + 1)
            rectify_gradient(d, 0, act, y0, n * hidden)
            bias_gradient(d, 0, width, n, width, floats(grads, index + 1))
        weight_gradient(d, 0, width, act, x0, stride, n, inputs, width, floats(grads, index), 0, inputs)
        below = drows if layer == 0 else np.zeros(n * hidden, np.float32)
        if layer == 0:
            drows[:] = _ZERO
        input_gradient(floats(params, index), 0, inputs, d, 0, width, below, 0, inputs, n, inputs, width)
        dout = below


@inner
def _lstm_gradient(
    z: NetShape, a: Activations, w: Array, layer: int, times: Array, rows: Array, c0: Array, act: Array, dout: Array,
    dgates: Array,
) -> None:  # fmt: skip
    """Write the gradients with respect to the gates of one layer before their nonlinearity to `dgates`; `w` are the
    recurrent weights `[4 hidden, hidden]`."""
    n, hidden = times[-1], z.hidden
    start = layer * n * hidden
    gates, cells, squashed = a.gates + 4 * start, a.cells + start, a.squashed + start
    dcells, after = np.zeros(rows.size * hidden, np.float32), 0
    for t in range(times.size - 2, -1, -1):
        first, count = times[t], times[t + 1] - times[t]
        if after > 0:
            input_gradient(
                w, 0, hidden, dgates, times[t + 1] * 4 * hidden, 4 * hidden, dout, first * hidden, hidden, after,
                hidden, 4 * hidden,
            )  # fmt: skip
        for i in range(count):
            p = first + i
            c = c0[layer, rows[i]] if t == 0 else act[cells + (times[t - 1] + i) * hidden :][:hidden]
            _cell_gradient(
                act[gates + p * 4 * hidden : gates + (p + 1) * 4 * hidden], c, act[squashed + p * hidden :][:hidden],
                dout[p * hidden : (p + 1) * hidden], dcells[i * hidden : (i + 1) * hidden],
                dgates[p * 4 * hidden : (p + 1) * 4 * hidden],
            )  # fmt: skip
        after = count


@inner
def _cell_gradient(gates: Array, c: Array, squashed: Array, dh: Array, dc: Array, d: Array) -> None:
    """Write the gradients with respect to the gates to `d`, and replace `dc`, the gradient with respect to c after the
    step, by that before it."""
    width = dh.size
    i, f, g, o = gates[:width], gates[width : 2 * width], gates[2 * width : 3 * width], gates[3 * width :]
    for j in range(width):
        total = dc[j] + dh[j] * o[j] * (_ONE - squashed[j] * squashed[j])
        dc[j] = total * f[j]
        d[j] = total * g[j] * i[j] * (_ONE - i[j])
        d[width + j] = total * c[j] * f[j] * (_ONE - f[j])
        d[2 * width + j] = total * i[j] * (_ONE - g[j] * g[j])
        d[3 * width + j] = dh[j] * squashed[j] * o[j] * (_ONE - o[j])
