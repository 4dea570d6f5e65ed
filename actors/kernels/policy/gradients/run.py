"""`evaluate` and `differentiate`, the kernels: the policy at given actions of whole sequences, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import Kernel, inner
from actors.kernels.policy.gradients.core import core_gradient, run_core
from actors.kernels.policy.gradients.encoder import StepInputs, encode, encode_gradient
from actors.kernels.policy.gradients.heads import heads_gradient, run_heads
from actors.kernels.policy.gradients.scores import HeadRules, StepScores, score, score_gradient
from actors.kernels.policy.gradients.sizes import NetShape, Parameters, activations, sizes_of

Array = NDArray[Any]


def _activation_size(like: Array, plan: Array, n: int) -> int:
    return activations(sizes_of(plan), n).total


def _evaluate(
    like: Array,  # float32, empty: names the precision
    plan: Array,  # int64: `NetShape`
    params: Array,  # int64 [P] addresses of parameters, float32 each
    counts: Array,  # int64 [P] their sizes
    stats: Array,  # float64 [2 D + 1]: mean, scale and clip of the observation's normalization
    head_sizes: Array,  # int64 [H]
    counted: Array,  # bool [ops, H]
    limits: Array,  # float64 [2]: probability floor and its largest total
    order: Array,  # int64 [n], see `StepInputs`
    times: Array,  # int64 [T + 1], see `run_core`
    rows: Array,  # int64 [R]
    obs: Array,  # [N, D]; this and what follows hold the n steps and perhaps others
    blueprints: Array,
    actions: Array,
    masks: Array,
    h0: Array,  # [layers, rows, hidden]
    c0: Array,
    act: Array,  # from here on output: activations
    log_probs: Array,
    entropies: Array,
    values: Array,
    baselines: Array,
    hidden: Array,  # [N, hidden]
) -> None:
    """Evaluate all steps. Raises `IndexError` for an action or a blueprint that there is not."""
    z, n, own = sizes_of(plan), order.size, Parameters(params, counts)
    a, rules = activations(z, n), HeadRules(head_sizes, counted, limits[0], limits[1])
    steps = StepInputs(order, obs, blueprints, actions, masks)
    _check(z, rules, steps)
    encode(z, a, own, stats, steps, act)
    run_core(z, a, own, times, rows, h0, c0, act)
    outputs = np.empty(n * z.values, np.float32)
    run_heads(z, a, own, rules, steps, act, outputs)
    score(z, a, rules, steps, act, StepScores(log_probs, entropies, values))
    for p in range(n):
        step, critic = order[p], outputs[p * z.values : (p + 1) * z.values]
        hidden[step] = act[a.out + p * z.hidden : a.out + (p + 1) * z.hidden]
        values[step] = baselines[step] = critic[0]
        if z.values > 1:
            values[step] = critic[actions[step, 0]]
            baselines[step] = _expected(z, rules, act[a.probs + p * z.choices :], masks[step], critic)


@inner
def _check(z: NetShape, rules: HeadRules, steps: StepInputs) -> None:
    for index in steps.blueprints.flat:
        if index < -1 or index >= z.blueprints - 1:
            raise IndexError("a blueprint index is out of range")
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
    share = min(np.float32(rules.floor), np.float32(rules.mass) / np.float32(max(1, count)))
    kept = np.float32(1.0) - np.float32(count) * share
    for j in range(z.ops):
        if legal[j]:
            total += (kept * probs[j] + share) * values[j]
    return total


def _differentiate(
    like: Array,
    plan: Array,
    params: Array,
    counts: Array,
    head_sizes: Array,
    counted: Array,
    limits: Array,
    order: Array,
    times: Array,
    rows: Array,
    obs: Array,
    blueprints: Array,
    actions: Array,
    masks: Array,
    c0: Array,
    act: Array,  # from `evaluate`
    d_log_probs: Array,  # gradients with respect to the results
    d_entropies: Array,
    d_values: Array,
    grads: Array,  # output: int64 [P] addresses of the gradients, which are added to what is there
) -> None:
    """Compute the gradients with respect to all parameters."""
    z, n, own = sizes_of(plan), order.size, Parameters(params, counts)
    a, rules = activations(z, n), HeadRules(head_sizes, counted, limits[0], limits[1])
    steps = StepInputs(order, obs, blueprints, actions, masks)
    gradients = Parameters(grads, counts)
    dlogits, doutputs = np.empty(n * z.choices, np.float32), np.zeros(n * z.values, np.float32)
    score_gradient(z, a, rules, steps, act, StepScores(d_log_probs, d_entropies, d_values), dlogits)
    for p in range(n):
        chosen = actions[order[p], 0] if z.values > 1 else 0
        doutputs[p * z.values + chosen] = d_values[order[p]]
    dout, dslots = np.empty(n * z.hidden, np.float32), np.zeros(n * z.slots * z.encoder, np.float32)
    heads_gradient(z, a, own, rules, steps, act, dlogits, doutputs, dout, dslots, gradients)
    drows = np.empty(n * z.core_input, np.float32)
    core_gradient(z, a, own, times, rows, c0, act, dout, drows, gradients)
    encode_gradient(z, a, own, steps, act, drows, dslots, gradients)


activation_size = Kernel(_activation_size)
evaluate = Kernel(_evaluate)
differentiate = Kernel(_differentiate)
