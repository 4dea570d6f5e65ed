"""The heads, given the actions, and the critic (see `actors.policy.heads`), and their gradients."""

from __future__ import annotations

import numpy as np

from actors.kernels.decorators import Array, inner
from actors.kernels.policy.choice import Sampling
from actors.kernels.policy.encoder import StepInputs
from actors.kernels.policy.layers import (
    ADD,
    bias_gradient,
    input_gradient,
    linear,
    normalize,
    normalize_gradient,
    rectify_gradient,
    weight_gradient,
)
from actors.kernels.policy.scores import HeadRules, StepScores, score_head
from actors.kernels.policy.sizes import (
    CORE_NORM,
    CRITIC,
    LATER,
    OP,
    OP_TABLE,
    POINTER,
    Activations,
    NetShape,
    Parameters,
    Weights,
    floats,
    rest_inputs,
    vector,
)

_ZERO = np.float32(0.0)


@inner
def run_heads(
    z: NetShape, a: Activations, w: Weights, rules: HeadRules, sampling: Sampling, steps: StepInputs, act: Array,
    values: Array, out: StepScores,
) -> None:  # fmt: skip
    """Score the actions, which are chosen head by head where they are not given, and leave the probabilities of all
    choices at `act[a.probs:]`; compute the critic's outputs `values [N * z.values]`."""
    n, hidden, head = steps.order.size, z.hidden, z.head
    gain, shift = vector(w, CORE_NORM), vector(w, CORE_NORM + 1)
    for p in range(n):
        hat, core = act[a.hat + p * hidden :][:hidden], act[a.core + p * hidden :][:hidden]
        act[a.inv + p] = normalize(act[a.out + p * hidden :][:hidden], hat)
        for j in range(hidden):
            core[j] = hat[j] * gain[j] + shift[j]
    _mlp(z, w, OP, act, a.core, hidden, a.op_hidden, n, act, a.probs, z.choices)
    _mlp(z, w, CRITIC, act, a.core, hidden, a.critic_hidden, n, values, 0, z.values)
    score_head(z, a, rules, sampling, steps, act, 0, 0, out)
    column = z.ops
    if z.slots > 0:
        _point(z, a, w, steps, act)
        score_head(z, a, rules, sampling, steps, act, 1, column, out)
        column += z.slots
    inputs, x0 = rest_inputs(z), a.core
    if z.context > 0 and z.rest > 0:
        x0 = a.joined
        _join(z, a, vector(w, OP_TABLE), steps, act)
    for k in range(z.rest):
        hidden_at = a.rest_hidden + k * n * head
        _mlp(z, w, LATER + 4 * k, act, x0, inputs, hidden_at, n, act, a.probs + column, z.choices)
        score_head(z, a, rules, sampling, steps, act, z.heads - z.rest + k, column, out)
        column += rules.sizes[z.heads - z.rest + k]


@inner
def _mlp(
    z: NetShape, w: Weights, index: int, act: Array, x0: int, inputs: int, hidden: int, n: int, y: Array, y0: int,
    yr: int,
) -> None:  # fmt: skip
    linear(w, index, 0, inputs, index + 1, act, x0, inputs, act, hidden, z.head, n)
    for j in range(hidden, hidden + n * z.head):
        act[j] = _ZERO if act[j] < _ZERO else act[j]
    linear(w, index + 2, 0, z.head, index + 3, act, hidden, z.head, y, y0, yr, n)


@inner
def _point(z: NetShape, a: Activations, w: Weights, steps: StepInputs, act: Array) -> None:
    """Compute the logits of slots. The hidden layer reads the core's output, a slot's encoding and the op."""
    n, head = steps.order.size, z.head
    shared = np.empty(n * head, np.float32)
    linear(w, POINTER, 0, z.hidden, POINTER + 1, act, a.core, z.hidden, shared, 0, head, n)
    by_op = np.zeros(max(1, z.ops) * head, np.float32)
    if z.context > 0:
        table = vector(w, OP_TABLE)
        linear(w, POINTER, z.hidden + z.encoder, z.context, ADD, table, 0, z.context, by_op, 0, head, z.ops)
    for p in range(n):
        op = steps.actions[steps.order[p], 0] if z.context > 0 else 0
        for s in range(z.slots):
            at = a.pointer_hidden + (p * z.slots + s) * head
            for j in range(head):
                act[at + j] = shared[p * head + j] + by_op[op * head + j]
    linear(w, POINTER, z.hidden, z.encoder, ADD, act, a.slots, z.encoder, act, a.pointer_hidden, head, n * z.slots)
    last, bias = vector(w, POINTER + 2), vector(w, POINTER + 3)[0]
    for p in range(n):
        for s in range(z.slots):
            at = a.pointer_hidden + (p * z.slots + s) * head
            logit = bias
            for j in range(head):
                act[at + j] = _ZERO if act[at + j] < _ZERO else act[at + j]
                logit += act[at + j] * last[j]
            act[a.probs + p * z.choices + z.ops + s] = logit


@inner
def _join(z: NetShape, a: Activations, table: Array, steps: StepInputs, act: Array) -> None:
    """Write the inputs of the rest heads: the core's output, the chosen slot's encoding and the op's embedding."""
    hidden, width, context = z.hidden, z.encoder, z.context
    for p in range(steps.order.size):
        op, slot = steps.actions[steps.order[p], 0], steps.actions[steps.order[p], 1]
        at, chosen = a.joined + p * (hidden + width + context), a.slots + (p * z.slots + slot) * width
        act[at : at + hidden] = act[a.core + p * hidden :][:hidden]
        act[at + hidden : at + hidden + width] = act[chosen : chosen + width]
        act[at + hidden + width :][:context] = table[op * context : (op + 1) * context]


@inner
def heads_gradient(
    z: NetShape, a: Activations, params: Parameters, rules: HeadRules, steps: StepInputs, act: Array,
    dlogits: Array, dvalues: Array, dout: Array, dslots: Array, grads: Parameters,
) -> None:  # fmt: skip
    """Write the gradients with respect to the core's outputs, `dout [N * hidden]`, and add those of the encodings of
    slots and of the parameters, given those of logits and of the critic's outputs."""
    n, hidden = steps.order.size, z.hidden
    dout[:] = _ZERO
    _mlp_gradient(z, params, grads, OP, act, a.core, hidden, a.op_hidden, n, z.ops, dlogits, 0, z.choices, dout)
    _mlp_gradient(
        z, params, grads, CRITIC, act, a.core, hidden, a.critic_hidden, n, z.values, dvalues, 0, z.values, dout
    )
    column = z.ops
    if z.slots > 0:
        _point_gradient(z, a, params, steps, act, dlogits, dout, dslots, grads)
        column += z.slots
    joined = z.context > 0 and z.rest > 0
    inputs, x0 = rest_inputs(z), a.joined if joined else a.core
    dx = np.zeros(n * inputs, np.float32) if joined else dout
    for k in range(z.rest):
        size, kept = rules.sizes[z.heads - z.rest + k], a.rest_hidden + k * n * z.head
        _mlp_gradient(z, params, grads, LATER + 4 * k, act, x0, inputs, kept, n, size, dlogits, column, z.choices, dx)
        column += size
    if joined:
        _join_gradient(z, steps, dx, dout, dslots, floats(grads, OP_TABLE))
    gain, dgain, dshift = floats(params, CORE_NORM), floats(grads, CORE_NORM), floats(grads, CORE_NORM + 1)
    for p in range(n):
        own_hat = act[a.hat + p * hidden :][:hidden]
        normalize_gradient(dout[p * hidden : (p + 1) * hidden], own_hat, act[a.inv + p], gain, dgain, dshift)


@inner
def _mlp_gradient(
    z: NetShape, params: Parameters, grads: Parameters, index: int, act: Array, x0: int, inputs: int, hidden: int,
    n: int, outputs: int, dy: Array, d0: int, dr: int, dx: Array,
) -> None:  # fmt: skip
    """Add the gradient with respect to the inputs to `dx [n * inputs]`, and those of the parameters."""
    head = z.head
    weight_gradient(dy, d0, dr, act, hidden, head, n, head, outputs, floats(grads, index + 2), 0, head)
    bias_gradient(dy, d0, dr, n, outputs, floats(grads, index + 3))
    dhidden = np.zeros(n * head, np.float32)
    input_gradient(floats(params, index + 2), 0, head, dy, d0, dr, dhidden, 0, head, n, head, outputs)
    rectify_gradient(dhidden, 0, act, hidden, n * head)
    weight_gradient(dhidden, 0, head, act, x0, inputs, n, inputs, head, floats(grads, index), 0, inputs)
    bias_gradient(dhidden, 0, head, n, head, floats(grads, index + 1))
    input_gradient(floats(params, index), 0, inputs, dhidden, 0, head, dx, 0, inputs, n, inputs, head)


@inner
def _point_gradient(
    z: NetShape, a: Activations, params: Parameters, steps: StepInputs, act: Array, dlogits: Array, dout: Array,
    dslots: Array, grads: Parameters,
) -> None:  # fmt: skip
    n, head, stride, rows = steps.order.size, z.head, z.hidden + z.encoder + z.context, steps.order.size * z.slots
    w, dw, db = floats(params, POINTER + 2), floats(grads, POINTER + 2), floats(grads, POINTER + 3)
    dhidden, shared = np.empty(rows * head, np.float32), np.zeros(n * head, np.float32)
    for p in range(n):
        for s in range(z.slots):
            at, kept = (p * z.slots + s) * head, a.pointer_hidden + (p * z.slots + s) * head
            d = dlogits[p * z.choices + z.ops + s]
            db[0] += d
            for j in range(head):
                dw[j] += d * act[kept + j]
                dhidden[at + j] = d * w[j] if act[kept + j] > _ZERO else _ZERO
                shared[p * head + j] += dhidden[at + j]
    w, dw = floats(params, POINTER), floats(grads, POINTER)
    weight_gradient(dhidden, 0, head, act, a.slots, z.encoder, rows, z.encoder, head, dw, z.hidden, stride)
    input_gradient(w, z.hidden, stride, dhidden, 0, head, dslots, 0, z.encoder, rows, z.encoder, head)
    weight_gradient(shared, 0, head, act, a.core, z.hidden, n, z.hidden, head, dw, 0, stride)
    input_gradient(w, 0, stride, shared, 0, head, dout, 0, z.hidden, n, z.hidden, head)
    bias_gradient(shared, 0, head, n, head, floats(grads, POINTER + 1))
    if z.context > 0:
        by_op = np.zeros(z.ops * head, np.float32)
        for p in range(n):
            op = steps.actions[steps.order[p], 0]
            for j in range(head):
                by_op[op * head + j] += shared[p * head + j]
        first, context = z.hidden + z.encoder, z.context
        table, dtable = floats(params, OP_TABLE), floats(grads, OP_TABLE)
        weight_gradient(by_op, 0, head, table, 0, context, z.ops, context, head, dw, first, stride)
        input_gradient(w, first, stride, by_op, 0, head, dtable, 0, context, z.ops, context, head)


@inner
def _join_gradient(z: NetShape, steps: StepInputs, dx: Array, dout: Array, dslots: Array, dtable: Array) -> None:
    hidden, width, context = z.hidden, z.encoder, z.context
    for p in range(steps.order.size):
        op, slot = steps.actions[steps.order[p], 0], steps.actions[steps.order[p], 1]
        at, chosen = p * (hidden + width + context), (p * z.slots + slot) * width
        for j in range(hidden):
            dout[p * hidden + j] += dx[at + j]
        for j in range(width):
            dslots[chosen + j] += dx[at + hidden + j]
        for j in range(context):
            dtable[op * context + j] += dx[at + hidden + width + j]
