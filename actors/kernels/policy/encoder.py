"""The encoder: from observations to the core's input and one encoding per slot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import inner, ordered
from actors.kernels.matmul import product
from actors.kernels.policy.functions import layer_norm, rectify
from actors.kernels.policy.net import BASE, SLOT, Net, matrix

Array = NDArray[Any]


@ordered
def _normalize(net: Net, stats: Array, obs: Array, base: Array, slots: Array) -> None:
    """Normalize and split an observation, in float64 as the network does; `stats` is mean, scale and clip."""
    size, clip = net.obs, stats[2 * net.obs]
    for k in range(size):
        z = 0.0 if net.blind else np.float64(obs[k])
        z = (z - stats[k]) * stats[size + k]
        z = clip if z > clip else z  # NaN stays NaN
        z = -clip if z < -clip else z
        if k < net.base:
            base[k] = z
        else:
            slots[k - net.base] = z


@inner
def encode(
    net: Net, plan: Array, w: Array, stats: Array, obs: Array, blueprints: Array, x: Array, stride: int, slots: Array
) -> None:
    """Encode `obs [n, D]`: the core's input at `x[i * stride]`, the encodings of slots in `slots [n * S * encoder]`."""
    rows, width, count = obs.shape[0], net.encoder, net.slots
    base, features = np.empty(rows * net.base, np.float32), np.empty(rows * count * net.slot_size, np.float32)
    per_row = count * net.slot_size
    for i in range(rows):
        own, parts = base[i * net.base : (i + 1) * net.base], features[i * per_row : (i + 1) * per_row]
        _normalize(net, stats, obs[i], own, parts)
    m = matrix(plan, BASE)
    raw = np.empty(rows * m.width, np.float32)
    product(w, m, base, 0, net.base, rows, raw)
    if net.slot_size == 0:
        _add_blueprints(net, w, blueprints, raw, m.width)
        for i in range(rows * count * width):
            slots[i] = w[net.slot_encodings + i % (count * width)]
    for i in range(rows):
        encoded = x[i * stride : i * stride + width]
        layer_norm(raw[i * m.width : i * m.width + width], encoded, w, net.base_gain, net.base_shift)
        rectify(encoded)
    if net.slot_size > 0:
        _encode_slots(net, plan, w, blueprints, features, slots)
        for i in range(rows):
            _pool(net, slots[i * count * width : (i + 1) * count * width], x, i * stride + width)


@inner
def _blueprint(net: Net, blueprints: Array, row: int, slot: int) -> int:
    return 0 if net.blind else blueprints[row, slot] + 1


@inner
def _add_blueprints(net: Net, w: Array, blueprints: Array, raw: Array, stride: int) -> None:
    """Add to the flat encoder's sums what it reads of the blueprints in the slots."""
    for i in range(blueprints.shape[0]):
        for s in range(net.slots):
            index = s * net.blueprints + _blueprint(net, blueprints, i, s)
            for j in range(net.encoder):
                raw[i * stride + j] += w[net.blueprint + index * net.encoder + j]


@inner
def _encode_slots(net: Net, plan: Array, w: Array, blueprints: Array, features: Array, slots: Array) -> None:
    m, width, count = matrix(plan, SLOT), net.encoder, net.slots
    rows = blueprints.shape[0] * count
    raw = np.empty(rows * m.width, np.float32)
    product(w, m, features, 0, net.slot_size, rows, raw)
    for r in range(rows):
        own, encoded = raw[r * m.width : r * m.width + width], slots[r * width : (r + 1) * width]
        at = net.blueprint + _blueprint(net, blueprints, r // count, r % count) * width
        for j in range(width):
            own[j] += w[at + j]
        layer_norm(own, encoded, w, net.slot_gain, net.slot_shift)
        rectify(encoded)


@inner
def _pool(net: Net, slots: Array, x: Array, at: int) -> None:
    """Write mean and maximum over `slots [S * encoder]` to `x[at:]`."""
    width = net.encoder
    share = np.float32(1.0 / net.slots)
    mean, most = x[at : at + width], x[at + width : at + 2 * width]
    mean[:] = slots[:width]
    most[:] = slots[:width]
    for s in range(1, net.slots):
        own = slots[s * width : (s + 1) * width]
        for j in range(width):
            mean[j] += own[j]
            most[j] = most[j] if most[j] > own[j] else own[j]
    for j in range(width):
        mean[j] *= share
