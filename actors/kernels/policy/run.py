"""The kernels: `step` chooses actions, `evaluate` scores those of whole sequences, `differentiate` is its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.kernels.decorators import Array, inner, kernel
from actors.kernels.policy.choice import Sampling
from actors.kernels.policy.core import core_gradient, keep_state, run_core
from actors.kernels.policy.encoder import StepInputs, encode, encode_gradient
from actors.kernels.policy.heads import heads_gradient, run_heads
from actors.kernels.policy.scores import HeadRules, StepScores, floor_share, score_gradient
from actors.kernels.policy.sizes import Activations, NetShape, Parameters, Weights, activations, pack_weights, sizes_of

CHUNK = 48
"""Steps that are chosen together, so that their activations stay in the cache: a multiple of `matmul`'s rows."""


@kernel
def pack(plan: Array, table: Array, params: Array, flat: Array) -> None:
    """Write the parameters at the addresses `params [P]` to the `Weights` of `flat` and `table`."""
    pack_weights(sizes_of(plan), Parameters(params, table), Weights(flat, table))


@kernel
def activation_size(plan: Array, n: int) -> int:
    """Return how many floats the activations of n steps take."""
    return activations(sizes_of(plan), n).total


@kernel
def step(
    plan: Array,  # int64: `NetShape`
    table: Array,  # int64 [P, 3], see `Weights`
    flat: Array,  # float32, from `pack`
    stats: Array,  # float64 [2 D + 1]: mean, scale and clip of the observation's normalization
    head_sizes: Array,  # int64 [H]
    relevance: Array,  # bool [ops, H]
    numbers: Array,  # float64 [4]: probability floor, its largest total, mean and deviation of the values
    obs: Array,  # [N, D]
    blueprints: Array,  # int64 [N, S]
    op: Array,  # bool masks, see `Sampling`
    slot: Array,
    rest: Array,
    noise: Array,  # float64 [N, H]
    greedy: Array,  # bool [N]
    rows: Array,  # int64 [N]: where in the recurrent states these rows are
    h: Array,  # [layers, rows, hidden]
    c: Array,
    actions: Array,  # from here on output: int64 [N, H]
    log_probs: Array,  # [N, H]
    masks: Array,  # bool [N, A] in force
    values: Array,  # [2, N] values and baseline values
    new_h: Array,  # the recurrent states after the step, which may be the same arrays as those before it
    new_c: Array,
) -> bool:
    """Choose the actions of N steps. Return whether every relevant head had a legal choice; where not, log-probs are
    not finite.

    Raises `IndexError` for a blueprint that there is not, which would be read from beyond its table.
    """
    z, n, w = sizes_of(plan), rows.size, Weights(flat, table)
    rules = HeadRules(head_sizes, relevance, numbers[0], numbers[1])
    _check_blueprints(z, blueprints)
    sampling = Sampling(True, op, slot, rest, noise, greedy)
    out = StepScores(log_probs, np.empty((0, 0), np.float32), values[0])
    order, act = np.arange(n), np.empty(activations(z, min(n, CHUNK)).total, np.float32)
    for first in range(0, n, CHUNK):
        part = slice(first, min(n, first + CHUNK))
        steps = StepInputs(order[part], obs, blueprints, actions, masks)
        a, times = activations(z, steps.order.size), np.array([0, steps.order.size])
        _forward(z, a, w, rules, sampling, stats, numbers, steps, times, rows[part], h, c, act, out, values[1])
        keep_state(z, a, rows[part], act, new_h, new_c)
    finite = True
    for p in range(n):
        for head in range(z.heads):
            finite = finite and np.isfinite(log_probs[p, head])
    return finite


@kernel
def evaluate(
    plan: Array,  # this, `stats` and `numbers` are as in `step`
    w: Weights,
    stats: Array,
    rules: HeadRules,
    numbers: Array,
    steps: StepInputs,  # n steps; its arrays may hold others
    times: Array,  # int64 [T + 1], see `run_core`
    rows: Array,  # int64 [R]
    h0: Array,  # [layers, rows, hidden]
    c0: Array,
    act: Array,  # from here on output: activations
    out: StepScores,
    baselines: Array,
    hidden: Array,  # [N, hidden]
) -> None:
    """Evaluate all steps. Raises `IndexError` for an action or a blueprint that there is not."""
    z, n = sizes_of(plan), steps.order.size
    a = activations(z, n)
    _check_blueprints(z, steps.blueprints)
    _check_actions(z, rules, steps)
    none = np.zeros((0, 0), np.bool_)
    given = Sampling(False, none, none, none, np.zeros((0, 0)), np.zeros(0, np.bool_))
    _forward(z, a, w, rules, given, stats, numbers, steps, times, rows, h0, c0, act, out, baselines)
    for p in range(n):
        hidden[steps.order[p]] = act[a.out + p * z.hidden : a.out + (p + 1) * z.hidden]


@inner
def _forward(
    z: NetShape, a: Activations, w: Weights, rules: HeadRules, sampling: Sampling, stats: Array, numbers: Array,
    steps: StepInputs, times: Array, rows: Array, h0: Array, c0: Array, act: Array, out: StepScores, baselines: Array,
) -> None:  # fmt: skip
    """Run the network, and keep in `act` what the backward pass reads."""
    encode(z, a, w, stats, steps, act)
    run_core(z, a, w, times, rows, h0, c0, act)
    outputs = np.empty(steps.order.size * z.values, np.float32)
    run_heads(z, a, w, rules, sampling, steps, act, outputs, out)
    mean, deviation = np.float32(numbers[2]), np.float32(numbers[3])
    for p in range(steps.order.size):
        step, critic = steps.order[p], outputs[p * z.values : (p + 1) * z.values]
        value = baseline = critic[0]
        if z.values > 1:
            value = critic[steps.actions[step, 0]]
            baseline = _expected(z, rules, act[a.probs + p * z.choices :], steps.masks[step], critic)
        out.values[step], baselines[step] = value * deviation + mean, baseline * deviation + mean


@inner
def _check_blueprints(z: NetShape, blueprints: Array) -> None:
    for index in blueprints.flat:
        if index < -1 or index >= z.blueprints - 1:
            raise IndexError("a blueprint index is out of range")


@inner
def _check_actions(z: NetShape, rules: HeadRules, steps: StepInputs) -> None:
    for p in range(steps.order.size):
        for head in range(z.heads):
            action = steps.actions[steps.order[p], head]
            if action < 0 or action >= rules.sizes[head]:
                raise IndexError("an action is out of range")


@inner
def _expected(z: NetShape, rules: HeadRules, probs: Array, legal: Array, values: Array) -> Any:
    """Return the expectation of the critic's outputs over the legal ops."""
    count, total = 0, np.float32(0.0)
    for j in range(z.ops):
        count += legal[j]
    share = floor_share(rules, count)
    kept = np.float32(1.0) - np.float32(count) * share
    for j in range(z.ops):
        if legal[j]:
            total += (kept * probs[j] + share) * values[j]
    return total


@kernel
def differentiate(
    plan: Array,
    params: Parameters,
    rules: HeadRules,
    steps: StepInputs,
    times: Array,
    rows: Array,
    c0: Array,
    act: Array,  # from `evaluate`
    given: StepScores,  # gradients with respect to the results
    grads: Parameters,  # output: the gradients are added to what is there
) -> None:
    """Compute the gradients with respect to all parameters."""
    z, n = sizes_of(plan), steps.order.size
    a = activations(z, n)
    dlogits, doutputs = np.empty(n * z.choices, np.float32), np.zeros(n * z.values, np.float32)
    score_gradient(z, a, rules, steps, act, given, dlogits)
    for p in range(n):
        chosen = steps.actions[steps.order[p], 0] if z.values > 1 else 0
        doutputs[p * z.values + chosen] = given.values[steps.order[p]]
    dout, dslots = np.empty(n * z.hidden, np.float32), np.zeros(n * z.slots * z.encoder, np.float32)
    heads_gradient(z, a, params, rules, steps, act, dlogits, doutputs, dout, dslots, grads)
    drows = np.empty(n * z.core_input, np.float32)
    core_gradient(z, a, params, times, rows, c0, act, dout, drows, grads)
    encode_gradient(z, a, params, steps, act, drows, dslots, grads)
