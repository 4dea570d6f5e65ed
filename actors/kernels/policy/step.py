"""`run_step`, the kernel: one step of the policy for N rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import Kernel, inner
from actors.kernels.policy.cores import feedforward, lstm, memory
from actors.kernels.policy.encoder import encode
from actors.kernels.policy.functions import layer_norm
from actors.kernels.policy.heads import Distribution, Masks, StepArrays, decide
from actors.kernels.policy.net import FEEDFORWARD, MEMORY, Net, net_of

Array = NDArray[Any]

CHUNK = 48
"""Rows that go through all layers together, so that their activations stay in the cache: a multiple of ROWS."""


def _run_step(
    plan: Array,  # int64: a `Net` and its matrices
    w: Array,  # float32, all weights
    stats: Array,  # float64 [2 D + 1]: mean, scale and clip of the observation's normalization
    numbers: Array,  # float64: probability floor, its largest total, mean and deviation of the values
    sizes: Array,  # int64 [H]
    relevance: Array,  # bool [ops, H]
    obs: Array,  # [N, D]
    blueprints: Array,  # int64 [N, S]
    op: Array,  # bool masks, flat after the first dimension, as in `Masks`
    slot: Array,
    rest: Array,
    rows: Array,  # int64 [N]: where in the recurrent states these rows are
    h: Array,
    c: Array,
    cells: Array,
    usage: Array,
    noise: Array,  # float64 [N, H]
    greedy: Array,  # bool [N]: rows that take the most likely choices
    actions: Array,  # from here on output: see `StepArrays`
    log_probs: Array,
    in_force: Array,
    values: Array,
    new_h: Array,  # the recurrent states after the step, which may be the same arrays as those before it
    new_c: Array,
    new_cells: Array,
    new_usage: Array,
) -> bool:
    """Run a step. Return whether every relevant head had a legal choice; where not, log-probs are NaN.

    Raises `IndexError` for a blueprint that there is not, which would be read from beyond its table.
    """
    net = net_of(plan)
    for index in blueprints.flat:
        if index < -1 or index >= net.blueprints - 1:
            raise IndexError("a blueprint index is out of range")
    dist = Distribution(sizes, relevance, numbers[0], numbers[1])
    for first in range(0, rows.size, CHUNK):
        part = slice(first, min(first + CHUNK, rows.size))
        own = rows[part]
        core, slots = (
            np.empty(own.size * net.hidden, np.float32),
            np.empty(own.size * net.slots * net.encoder, np.float32),
        )
        stride = max(net.core_input, net.hidden) + (0 if net.core == FEEDFORWARD else net.hidden)
        x = np.empty(own.size * stride, np.float32)
        encode(net, plan, w, stats, obs[part], blueprints[part], x, stride, slots)
        if net.core == FEEDFORWARD:
            feedforward(net, plan, w, own.size, x, stride, core)
        else:
            lstm(net, plan, w, own, x, stride, core, h, c, new_h, new_c)
        if net.core == MEMORY:
            memory(net, plan, w, own, core, cells, usage, new_cells, new_usage)
        _normalize(net, w, core)
        masks = Masks(op[part], slot[part], rest[part])
        out = StepArrays(actions[part], log_probs[part], in_force[part], values[:, part])
        decide(net, plan, w, dist, core, slots, masks, noise[part], greedy[part], out)
    return _finish(net, numbers, relevance, actions, log_probs, values)


run_step = Kernel(_run_step)


@inner
def _normalize(net: Net, w: Array, core: Array) -> None:
    """Apply the core's LayerNorm in place."""
    for i in range(core.size // net.hidden):
        own = core[i * net.hidden : (i + 1) * net.hidden]
        layer_norm(own, own, w, net.core_gain, net.core_shift)


@inner
def _finish(net: Net, numbers: Array, relevance: Array, actions: Array, log_probs: Array, values: Array) -> bool:
    """Denormalize the values, leave out the log-probs of irrelevant heads, and return whether all are finite."""
    mean, deviation = np.float32(numbers[2]), np.float32(numbers[3])
    for k in range(2):
        for i in range(values.shape[1]):
            values[k, i] = values[k, i] * deviation + mean
    finite = True
    for i in range(actions.shape[0]):
        for k in range(actions.shape[1]):
            if net.causal and not relevance[actions[i, 0], k]:
                log_probs[i, k] = np.float32(0.0)
            finite = finite and np.isfinite(log_probs[i, k])
    return finite
