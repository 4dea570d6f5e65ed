"""The kernels: `step` chooses actions, `evaluate` scores those of whole sequences, `differentiate` is its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import Kernel, inner
from actors.kernels.policy.choice import Sampling
from actors.kernels.policy.core import core_gradient, keep_state, run_core
from actors.kernels.policy.encoder import StepInputs, encode, encode_gradient
from actors.kernels.policy.heads import heads_gradient, run_heads
from actors.kernels.policy.scores import HeadRules, StepScores, score_gradient
from actors.kernels.policy.sizes import Activations, NetShape, Parameters, Weights, activations, pack_weights, sizes_of

Array = NDArray[Any]

CHUNK = 48
"""Steps that are chosen together, so that their activations stay in the cache: a multiple of `matmul`'s rows."""


@Kernel
def pack(plan: Array, parameters: Parameters, w: Weights) -> None:
    """Write the parameters to `w`."""
    pack_weights(sizes_of(plan), parameters, w)


@Kernel
def activation_size(plan: Array, n: int) -> int:
    """Return how many numbers the activations of n steps have."""
    return activations(sizes_of(plan), n).total


@Kernel
def step(
    plan: Array,  # int64: `NetShape`
    w: Weights,  # from `pack`
    stats: Array,  # float64 [2 D + 1]: mean, scale and clip of the observation's normalization
    rules: HeadRules,
    unit: tuple[float, float],  # mean and deviation of the values
    obs: Array,  # [N, D]
    blueprints: Array,  # int64 [N, S]
    sampling: Sampling,
    rows: Array,  # int64 [N]: where in the recurrent states these rows are
    h: Array,  # [layers, rows, hidden]
    c: Array,
    actions: Array,  # from here on output: int64 [N, H]
    log_probs: Array,  # [N, H]
    masks: Array,  # bool [N, A] in force
    values: Array,  # [2, N] values and baseline values
) -> None:
    """Choose the actions of N steps; the recurrent states after them replace those before. Log-probs of a relevant head
    without a legal choice are not finite.

    Raises `IndexError` for a blueprint that there is not, which would be read from beyond its table.
    """
    z, n = sizes_of(plan), rows.size
    _check_blueprints(z, blueprints)
    out = StepScores(log_probs, np.empty((0, 0), np.float32), values[0])
    order, act = np.arange(n), np.empty(activations(z, min(n, CHUNK)).total, np.float32)
    for first in range(0, n, CHUNK):
        part = slice(first, min(n, first + CHUNK))
        steps = StepInputs(order[part], obs, blueprints, actions, masks)
        a, times = activations(z, steps.order.size), np.array([0, steps.order.size])
        _forward(z, a, w, rules, sampling, stats, unit, steps, times, rows[part], h, c, act, out, values[1])
        keep_state(z, a, rows[part], act, h, c)


@Kernel
def evaluate(
    plan: Array,  # these are as in `step`
    w: Weights,
    stats: Array,
    rules: HeadRules,
    unit: tuple[float, float],
    times: Array,  # int64 [T + 1], see `run_core`
    rows: Array,  # int64 [R]
    steps: StepInputs,  # the n steps and perhaps others
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
    z, n = sizes_of(plan), steps.order.size
    a = activations(z, n)
    _check_blueprints(z, steps.blueprints)
    _check_actions(z, rules, steps)
    none = np.zeros((0, 0), np.bool_)
    given = Sampling(False, none, none, none, np.zeros((0, 0)), np.zeros(0, np.bool_))
    out = StepScores(log_probs, entropies, values)
    _forward(z, a, w, rules, given, stats, unit, steps, times, rows, h0, c0, act, out, baselines)
    for p in range(n):
        hidden[steps.order[p]] = act[a.out + p * z.hidden : a.out + (p + 1) * z.hidden]


@inner
def _forward(
    z: NetShape,
    a: Activations,
    w: Weights,
    rules: HeadRules,
    sampling: Sampling,
    stats: Array,
    unit: tuple[float, float],
    steps: StepInputs,
    times: Array,
    rows: Array,
    h0: Array,
    c0: Array,
    act: Array,
    out: StepScores,
    baselines: Array,
) -> None:
    """Run the network, and keep in `act` what the backward pass reads."""
    encode(z, a, w, stats, steps, act)
    run_core(z, a, w, times, rows, h0, c0, act)
    outputs = np.empty(steps.order.size * z.values, np.float32)
    run_heads(z, a, w, rules, sampling, steps, act, outputs, out)
    mean, deviation = np.float32(unit[0]), np.float32(unit[1])
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
    share = min(np.float32(rules.floor), np.float32(rules.mass) / np.float32(max(1, count)))
    kept = np.float32(1.0) - np.float32(count) * share
    for j in range(z.ops):
        if legal[j]:
            total += (kept * probs[j] + share) * values[j]
    return total


@Kernel
def differentiate(
    plan: Array,
    parameters: Parameters,
    rules: HeadRules,
    times: Array,
    rows: Array,
    steps: StepInputs,
    c0: Array,
    act: Array,  # from `evaluate`
    given: StepScores,  # gradients with respect to the results
    gradients: Parameters,  # output: they are added to what is there
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
    heads_gradient(z, a, parameters, rules, steps, act, dlogits, doutputs, dout, dslots, gradients)
    drows = np.empty(n * z.core_input, np.float32)
    core_gradient(z, a, parameters, times, rows, c0, act, dout, drows, gradients)
    encode_gradient(z, a, parameters, steps, act, drows, dslots, gradients)
