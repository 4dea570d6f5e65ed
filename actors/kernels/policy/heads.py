"""The heads in their order, each given the earlier choices, and the critic (see `actors.policy.heads`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import inner
from actors.kernels.matmul import product
from actors.kernels.policy.choice import choose, probabilities
from actors.kernels.policy.functions import rectify
from actors.kernels.policy.net import CRITIC, LATER, OP, POINTER, REST_SLOT, TRUNK, Net, matrix

Array = NDArray[Any]


class Distribution(NamedTuple):
    """What all heads share."""

    sizes: Array  # [H] int64, choices of each head
    relevance: Array  # [ops, H] bool
    floor: float
    mass: float


class Masks(NamedTuple):
    """Legal choices of n rows: `ActionMasks`, each flat after the first dimension."""

    op: Array  # [n, ops]
    slot: Array  # [n, ops * S], or [n, 0]
    rest: Array  # [n, ops * S * R], or [n, R]


class StepArrays(NamedTuple):
    """Output of n rows; `in_force` is `ActionMasks.in_force`."""

    actions: Array  # [n, H] int64
    log_probs: Array  # [n, H]
    in_force: Array  # [n, A] bool
    values: Array  # [2, n] normalized values and baseline values


@inner
def _pick(
    net: Net, head: int, dist: Distribution, logits: Array, legal: Array, noise: float, greedy: bool, log_probs: Array
) -> int:
    """Sample one head of one row from `logits` and the mask `legal`, both `[n]`; write its log-prob."""
    probs = np.empty(legal.size, np.float32)
    probabilities(logits, legal, dist.floor, dist.mass, probs)
    choice = choose(probs, noise, greedy)
    log_probs[head] = np.log(probs[choice])
    return choice


@inner
def _restrict(net: Net, legal: Array, mask: Array, start: int, relevant: bool) -> None:
    """Write the mask in force: `mask[start:]`, or that of an irrelevant head."""
    for j in range(legal.size):
        legal[j] = mask[start + j] if relevant else (j == 0 or net.causal == 0)


@inner
def decide(
    net: Net,
    plan: Array,
    w: Array,
    dist: Distribution,
    core: Array,
    slots: Array,
    masks: Masks,
    noise: Array,
    greedy: Array,
    out: StepArrays,
) -> None:
    """Choose for the rows of `core [n * hidden]`, with slot encodings `slots [n * S * encoder]`."""
    n = noise.shape[0]
    trunk = matrix(plan, TRUNK)
    hidden = np.empty(n * trunk.width, np.float32)
    product(w, trunk, core, 0, net.hidden, n, hidden)
    for i in range(n):
        rectify(hidden[i * trunk.width : i * trunk.width + 2 * net.head])
    _choose_op(net, plan, w, dist, hidden, trunk.width, masks, noise, greedy, out)
    if net.slots > 0:
        _choose_slot(net, plan, w, dist, hidden, trunk.width, slots, masks, noise, greedy, out)
    if net.rest > 0:
        first = 3 * net.head if net.slots > 0 else 2 * net.head
        _choose_rest(net, plan, w, dist, hidden, trunk.width, first, slots, masks, noise, greedy, out)


@inner
def _choose_op(
    net: Net,
    plan: Array,
    w: Array,
    dist: Distribution,
    hidden: Array,
    stride: int,
    masks: Masks,
    noise: Array,
    greedy: Array,
    out: StepArrays,
) -> None:
    """Choose the op, and compute the values."""
    n, op, critic = noise.shape[0], matrix(plan, OP), matrix(plan, CRITIC)
    logits, values = np.empty(n * op.width, np.float32), np.empty(n * critic.width, np.float32)
    product(w, op, hidden, 0, stride, n, logits)
    product(w, critic, hidden, net.head, stride, n, values)
    probs = np.empty(net.ops, np.float32)
    for i in range(n):
        legal = out.in_force[i, : net.ops]
        legal[:] = masks.op[i]
        probabilities(logits[i * op.width : i * op.width + net.ops], legal, dist.floor, dist.mass, probs)
        choice = choose(probs, noise[i, 0], greedy[i])
        out.actions[i, 0], out.log_probs[i, 0] = choice, np.log(probs[choice])
        own = values[i * critic.width : (i + 1) * critic.width]
        expected = own[0]
        if net.q_op:
            expected = np.float32(0.0)
            for j in range(net.ops):
                expected += probs[j] * own[j]
        out.values[0, i], out.values[1, i] = own[choice if net.q_op else 0], expected


@inner
def _choose_slot(
    net: Net,
    plan: Array,
    w: Array,
    dist: Distribution,
    hidden: Array,
    stride: int,
    slots: Array,
    masks: Masks,
    noise: Array,
    greedy: Array,
    out: StepArrays,
) -> None:
    n, width, count, m = noise.shape[0], net.head, net.slots, matrix(plan, POINTER)
    pointed = np.empty(n * count * m.width, np.float32)
    product(w, m, slots, 0, net.encoder, n * count, pointed)
    weight, bias = w[net.pointer : net.pointer + width], w[net.pointer + width]
    logits = np.empty(count, np.float32)
    for i in range(n):
        op = out.actions[i, 0]
        own = hidden[i * stride + 2 * width : i * stride + 3 * width]
        if net.conditioned:
            context = net.context + op * (1 + net.rest) * width
            for j in range(width):
                own[j] += w[context + j]
        for s in range(count):
            part = pointed[(i * count + s) * m.width : (i * count + s) * m.width + width]
            logit = np.float32(0.0)
            for j in range(width):
                z = own[j] + part[j]
                logit += (np.float32(0.0) if z < np.float32(0.0) else z) * weight[j]
            logits[s] = logit + bias
        relevant = dist.relevance[op, 1]
        legal = out.in_force[i, net.ops : net.ops + count]
        _restrict(net, legal, masks.slot[i], op * count, relevant)
        out.actions[i, 1] = _pick(net, 1, dist, logits, legal, noise[i, 1], greedy[i], out.log_probs[i])


@inner
def _choose_rest(
    net: Net,
    plan: Array,
    w: Array,
    dist: Distribution,
    hidden: Array,
    stride: int,
    first: int,
    slots: Array,
    masks: Masks,
    noise: Array,
    greedy: Array,
    out: StepArrays,
) -> None:
    """Choose the remaining heads, whose hidden layers begin at `first` in each row of `hidden`."""
    n, width = noise.shape[0], net.rest * net.head
    if net.conditioned:
        _add_choices(net, plan, w, hidden, stride, first, slots, out)
    for i in range(n):
        rectify(hidden[i * stride + first : i * stride + first + width])
    column, head = net.ops + net.slots, 2 if net.slots > 0 else 1
    from_mask = 0
    for k in range(net.rest):
        m, size = matrix(plan, LATER + k), dist.sizes[head]
        logits = np.empty(n * m.width, np.float32)
        product(w, m, hidden, first + k * net.head, stride, n, logits)
        for i in range(n):
            op = out.actions[i, 0]
            start = from_mask
            if net.slots > 0:
                start += (op * net.slots + out.actions[i, 1]) * net.rest_size
            legal = out.in_force[i, column : column + size]
            _restrict(net, legal, masks.rest[i], start, dist.relevance[op, head])
            own = logits[i * m.width : i * m.width + size]
            out.actions[i, head] = _pick(net, head, dist, own, legal, noise[i, head], greedy[i], out.log_probs[i])
        column, head, from_mask = column + size, head + 1, from_mask + size


@inner
def _add_choices(
    net: Net, plan: Array, w: Array, hidden: Array, stride: int, first: int, slots: Array, out: StepArrays
) -> None:
    """Add to the hidden layers of the rest heads what they read of the chosen op and slot."""
    n, size, width, m = out.actions.shape[0], net.encoder, net.rest * net.head, matrix(plan, REST_SLOT)
    chosen, read = np.empty(n * size, np.float32), np.empty(n * m.width, np.float32)
    for i in range(n):
        at = (i * net.slots + out.actions[i, 1]) * size
        chosen[i * size : (i + 1) * size] = slots[at : at + size]
    product(w, m, chosen, 0, size, n, read)
    for i in range(n):
        own, part = hidden[i * stride + first : i * stride + first + width], read[i * m.width : i * m.width + width]
        context = net.context + (out.actions[i, 0] * (1 + net.rest) + 1) * net.head
        for j in range(width):
            own[j] += part[j] + w[context + j]
