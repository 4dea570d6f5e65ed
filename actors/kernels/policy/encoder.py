"""The encoders (see `actors.policy.encoder`) and their gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from actors.kernels.decorators import Array, inner, ordered
from actors.kernels.policy.layers import (
    bias_gradient,
    input_gradient,
    linear,
    normalize,
    normalize_gradient,
    weight_gradient,
)
from actors.kernels.policy.sizes import (
    BASE,
    BLUEPRINT,
    SLOT,
    SLOT_TABLE,
    Activations,
    NetShape,
    Parameters,
    Weights,
    base_inputs,
    floats,
    row_width,
    vector,
)

_ZERO = np.float32(0.0)


class StepInputs(NamedTuple):
    """Inputs of N steps, in any order; `order [N]` is the index of the step that is processed at each place."""

    order: Array  # int64
    obs: Array  # [N, D]
    blueprints: Array  # int64 [N, S]
    actions: Array  # int64 [N, H]
    masks: Array  # bool [N, A]


@ordered
def _standardize(z: NetShape, stats: Array, obs: Array, base: Array, slots: Array, slot_row: int) -> None:
    """Normalize and split an observation, in float64 as the network does; `stats` is mean, scale and clip."""
    clip = stats[2 * z.obs]
    for k in range(z.obs):
        x = 0.0 if z.blind else np.float64(obs[k])
        x = (x - stats[k]) * stats[z.obs + k]
        x = clip if x > clip else x  # NaN stays NaN
        x = -clip if x < -clip else x
        if k < z.base:
            base[k] = x
        else:
            slots[(k - z.base) // z.slot_size * slot_row + (k - z.base) % z.slot_size] = x


@inner
def _index(z: NetShape, blueprints: Array, step: int, slot: int) -> int:
    return 0 if z.blind else blueprints[step, slot] + 1


@inner
def _has_seed(z: NetShape, blueprints: Array, slot: int) -> bool:
    return not z.blind and blueprints[slot] >= 0


@inner
def encode(z: NetShape, a: Activations, w: Weights, stats: Array, steps: StepInputs, act: Array) -> None:
    """Compute the core's inputs and the encodings of slots."""
    n, inputs, width, stride = steps.order.size, base_inputs(z), z.encoder, row_width(z, 0)
    features = z.slot_size + z.embedding
    table = vector(w, BLUEPRINT)
    for p in range(n):
        step, at = steps.order[p], a.base_in + p * inputs
        inputs_at = a.slot_in + p * z.slots * features
        _standardize(z, stats, steps.obs[step], act[at : at + z.base], act[inputs_at:], features)
        for s in range(z.slots):
            row = _index(z, steps.blueprints, step, s) * z.embedding
            to = inputs_at + s * features + z.slot_size if z.slot_size > 0 else at + z.base + s * z.embedding
            for j in range(z.embedding):
                act[to + j] = table[row + j]
    _encode(w, BASE, act, a.base_in, inputs, n, width, a.base_hat, a.base_inv, a.rows, stride)
    if z.slot_size > 0:
        _encode(w, SLOT, act, a.slot_in, features, n * z.slots, width, a.slot_hat, a.slot_inv, a.slots, width)
        for p in range(n):
            _pool(z, steps.blueprints[steps.order[p]], act, a.slots + p * z.slots * width, a.rows + p * stride + width)
    else:
        encodings = vector(w, SLOT_TABLE)[: z.slots * width]
        for p in range(n):
            act[a.slots + p * z.slots * width : a.slots + (p + 1) * z.slots * width] = encodings


@inner
def _encode(
    w: Weights, index: int, act: Array, x0: int, inputs: int, n: int, width: int, hat: int, inv: int, y0: int, yr: int
) -> None:
    """Apply a linear layer, LayerNorm and ReLU."""
    gain, shift = vector(w, index + 2), vector(w, index + 3)
    linear(w, index, 0, inputs, index + 1, act, x0, inputs, act, y0, yr, n)
    for r in range(n):
        out, normal = act[y0 + r * yr : y0 + r * yr + width], act[hat + r * width : hat + (r + 1) * width]
        act[inv + r] = normalize(out, normal)
        for j in range(width):
            y = normal[j] * gain[j] + shift[j]
            out[j] = _ZERO if y < _ZERO else y


@inner
def _share(z: NetShape, blueprints: Array) -> np.float32:
    """Return 1 / the number of slots with a seed, 0 without any."""
    seeds = 0
    for s in range(z.slots):
        seeds += int(_has_seed(z, blueprints, s))
    return np.float32(1.0 / seeds) if seeds > 0 else _ZERO


@inner
def _pool(z: NetShape, blueprints: Array, act: Array, slots: int, at: int) -> None:
    """Write mean and maximum over the encodings of those of one step's slots that have a seed; 0 without any."""
    width, share = z.encoder, _share(z, blueprints)
    act[at : at + 2 * width] = _ZERO
    for s in range(z.slots):
        if _has_seed(z, blueprints, s):
            for j in range(width):
                encoding = act[slots + s * width + j]
                act[at + j] += encoding * share
                act[at + width + j] = max(act[at + width + j], encoding)


@inner
def encode_gradient(
    z: NetShape, a: Activations, params: Parameters, steps: StepInputs, act: Array, drows: Array, dslots: Array,
    grads: Parameters,
) -> None:  # fmt: skip
    """Add the gradients of the encoder's parameters, given those with respect to its outputs, which are overwritten:
    `drows [N, core_input]` and `dslots [N * S, encoder]`."""
    n, inputs, width, features = steps.order.size, base_inputs(z), z.encoder, z.slot_size + z.embedding
    stride, table = row_width(z, 0), floats(grads, BLUEPRINT)
    _encode_gradient(
        params, grads, BASE, act, a.base_in, inputs, n, width, a.base_hat, a.base_inv, a.rows, stride, drows,
        z.core_input,
    )  # fmt: skip
    if z.slot_size == 0:
        if z.slots > 0:
            bias_gradient(dslots, 0, z.slots * width, n, z.slots * width, floats(grads, SLOT_TABLE))
            din = np.zeros(n * inputs, np.float32)
            w = floats(params, BASE)
            input_gradient(w, 0, inputs, drows, 0, z.core_input, din, 0, inputs, n, inputs, width)
            for p in range(n):
                for s in range(z.slots):
                    _add(table, _index(z, steps.blueprints, steps.order[p], s), z.embedding, din,
                         p * inputs + z.base + s * z.embedding)  # fmt: skip
        return
    for p in range(n):
        _pool_gradient(
            z, steps.blueprints[steps.order[p]], act, a.slots + p * z.slots * width, dslots, p * z.slots * width, drows,
            p * z.core_input + width,
        )  # fmt: skip
    rows = n * z.slots
    _encode_gradient(
        params, grads, SLOT, act, a.slot_in, features, rows, width, a.slot_hat, a.slot_inv, a.slots, width,
        dslots, width,
    )  # fmt: skip
    din = np.zeros(rows * z.embedding, np.float32)
    w = floats(params, SLOT)
    input_gradient(w, z.slot_size, features, dslots, 0, width, din, 0, z.embedding, rows, z.embedding, width)
    for r in range(rows):
        _add(table, _index(z, steps.blueprints, steps.order[r // z.slots], r % z.slots), z.embedding, din,
             r * z.embedding)  # fmt: skip


@inner
def _add(table: Array, index: int, width: int, x: Array, at: int) -> None:
    for j in range(width):
        table[index * width + j] += x[at + j]


@inner
def _encode_gradient(
    params: Parameters, grads: Parameters, index: int, act: Array, x0: int, inputs: int, n: int, width: int,
    hat: int, inv: int, y0: int, yr: int, dy: Array, dr: int,
) -> None:  # fmt: skip
    """Replace `dy` by the gradient with respect to the linear layer's output, and add those of the parameters."""
    gain = floats(params, index + 2)
    dgain, dshift = floats(grads, index + 2), floats(grads, index + 3)
    for r in range(n):
        d, y = dy[r * dr : r * dr + width], act[y0 + r * yr : y0 + r * yr + width]
        for j in range(width):
            d[j] = d[j] if y[j] > _ZERO else _ZERO
        normalize_gradient(d, act[hat + r * width : hat + (r + 1) * width], act[inv + r], gain, dgain, dshift)
    weight_gradient(dy, 0, dr, act, x0, inputs, n, inputs, width, floats(grads, index), 0, inputs)
    bias_gradient(dy, 0, dr, n, width, floats(grads, index + 1))


@inner
def _pool_gradient(
    z: NetShape, blueprints: Array, act: Array, slots: int, dslots: Array, d0: int, drow: Array, at: int
) -> None:
    """Add the gradients of mean and maximum; equal maxima share theirs, as in PyTorch."""
    width, share = z.encoder, _share(z, blueprints)
    for j in range(width):
        most, ties = _ZERO, 0
        for s in range(z.slots):
            if _has_seed(z, blueprints, s):
                encoding = act[slots + s * width + j]
                if encoding > most:
                    most, ties = encoding, 1
                elif encoding == most:
                    ties += 1
        mean, peak = drow[at + j] * share, drow[at + width + j] / np.float32(max(ties, 1))
        for s in range(z.slots):
            if _has_seed(z, blueprints, s):
                k = s * width + j
                dslots[d0 + k] += mean + (peak if act[slots + k] == most else _ZERO)
