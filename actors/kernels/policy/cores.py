"""The core: a feedforward network, or one step of an LSTM with or without an external memory.

See `actors.policy.cores` for the formulas. Recurrent states are `[n, rows, width]`, read and written at given rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import inner
from actors.kernels.matmul import product
from actors.kernels.policy.functions import exponential, hyperbolic_tangent, rectify, sigmoid
from actors.kernels.policy.net import LATER, MEMORY_INPUT, MEMORY_READ, Net, matrix

Array = NDArray[Any]
USAGE_DECAY = np.float32(0.95)


@inner
def feedforward(net: Net, plan: Array, w: Array, rows: int, x: Array, stride: int, out: Array) -> None:
    """Compute `out [rows * hidden]` from the core's input at `x[i * stride]`."""
    hidden = net.hidden
    for layer in range(net.layers):
        m = matrix(plan, LATER + net.rest + layer)
        raw = np.empty(rows * m.width, np.float32)
        product(w, m, x, 0, stride, rows, raw)
        rectify(raw)
        for i in range(rows):
            out[i * hidden : (i + 1) * hidden] = raw[i * m.width : i * m.width + hidden]
        x, stride = out, hidden


@inner
def lstm(
    net: Net,
    plan: Array,
    w: Array,
    rows: Array,
    x: Array,
    stride: int,
    out: Array,
    h: Array,
    c: Array,
    new_h: Array,
    new_c: Array,
) -> None:
    """Compute `out [n * hidden]` and the new state at `rows [n]`. There is room for h after the input in `x`."""
    n, hidden = rows.size, net.hidden
    for layer in range(net.layers):
        m = matrix(plan, LATER + net.rest + layer)
        inputs = m.depth - hidden
        if layer > 0:
            for i in range(n):
                x[i * stride : i * stride + hidden] = out[i * hidden : (i + 1) * hidden]
        for i in range(n):
            x[i * stride + inputs : i * stride + inputs + hidden] = h[layer, rows[i]]
        gates = np.empty(n * m.width, np.float32)
        product(w, m, x, 0, stride, n, gates)
        for i in range(n):
            own, at = out[i * hidden : (i + 1) * hidden], i * m.width
            _cell(gates[at : at + 4 * hidden], c[layer, rows[i]], new_c[layer, rows[i]], own)
            new_h[layer, rows[i]] = own


@inner
def _cell(gates: Array, c: Array, new_c: Array, h: Array) -> None:
    """Compute new c and h `[hidden]` from the gates before their nonlinearity: input, forget, output, candidate."""
    hidden = h.size
    for j in range(3 * hidden):
        gates[j] = sigmoid(gates[j])
    for j in range(3 * hidden, 4 * hidden):
        gates[j] = hyperbolic_tangent(gates[j])
    i, f, o, g = gates[:hidden], gates[hidden : 2 * hidden], gates[2 * hidden : 3 * hidden], gates[3 * hidden :]
    for j in range(hidden):
        g[j] = f[j] * c[j] + i[j] * g[j]
    for j in range(hidden):
        new_c[j] = g[j]
        h[j] = o[j] * hyperbolic_tangent(g[j])


@inner
def memory(
    net: Net,
    plan: Array,
    w: Array,
    rows: Array,
    out: Array,
    cells: Array,
    usage: Array,
    new_cells: Array,
    new_usage: Array,
) -> None:
    """Add what the memory reads to `out [n * hidden]`, and compute the new cells and usage at `rows [n]`."""
    n, hidden, size = rows.size, net.hidden, net.cell_size
    m = matrix(plan, MEMORY_INPUT)
    projected, reads = np.empty(n * m.width, np.float32), np.zeros(n * size, np.float32)
    product(w, m, out, 0, hidden, n, projected)
    for i in range(n):
        own, row = projected[i * m.width : (i + 1) * m.width], rows[i]
        before, used = new_cells[:, row], new_usage[:, row, 0]
        before[:] = cells[:, row]
        used[:] = usage[:, row, 0]
        _access(own[:size], own[size : 2 * size], own[2 * size], before, used, reads[i * size : (i + 1) * size])
    m = matrix(plan, MEMORY_READ)
    read = np.empty(n * m.width, np.float32)
    product(w, m, reads, 0, size, n, read)
    for i in range(n):
        for j in range(hidden):
            out[i * hidden + j] += read[i * m.width + j]


@inner
def _access(query: Array, write: Array, gate: Any, cells: Array, usage: Array, read: Array) -> None:
    """Read from `cells [K, size]` into `read`, then write to the least used cell and update `usage [K]`, in place."""
    count, size = cells.shape
    attention = np.empty(count, np.float32)
    scale = np.float32(1.0 / np.sqrt(np.float64(size)))
    most = np.float32(-np.inf)
    for k in range(count):
        score = np.float32(0.0)
        for j in range(size):
            score += cells[k, j] * query[j]
        attention[k] = score * scale
        most = most if most > attention[k] else attention[k]
    total = np.float32(0.0)
    for k in range(count):
        attention[k] = exponential(attention[k] - most)
        total += attention[k]
    least = 0
    for k in range(count):
        attention[k] /= total
        usage[k] = USAGE_DECAY * usage[k] + attention[k]
        least = k if usage[k] < usage[least] else least
        for j in range(size):
            read[j] += attention[k] * cells[k, j]
    strength = sigmoid(gate)
    kept = np.float32(1.0) - strength
    usage[least] = usage[least] * kept + strength
    for j in range(size):
        cells[least, j] = cells[least, j] * kept + strength * hyperbolic_tangent(write[j])
