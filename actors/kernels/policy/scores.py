"""Log-probs and entropies of actions, and their gradients (see `actors.policy.distribution` for the formulas)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from actors.kernels.decorators import Array, inner, ordered
from actors.kernels.policy.choice import Sampling, choose, restrict
from actors.kernels.policy.encoder import StepInputs
from actors.kernels.policy.functions import exponential
from actors.kernels.policy.sizes import Activations, NetShape

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class HeadRules(NamedTuple):
    """What the heads' distributions are made from."""

    sizes: Array  # int64 [H], choices of each head
    relevance: Array  # bool [ops, H]
    floor: float
    mass: float


class StepScores(NamedTuple):
    """Results, or the gradients with respect to them, in the order of the batch."""

    log_probs: Array  # [N, H]
    entropies: Array  # [N, H], or [0, 0] where actions are chosen
    values: Array  # [N]


@ordered
def _softmax(x: Array, legal: Array) -> tuple[Any, Any]:
    """Replace logits by probabilities; return the largest logit plus the log of the sum, and the number of legal
    choices."""
    most, count = np.float32(-np.inf), 0
    for j in range(legal.size):
        if legal[j]:
            count += 1
            most = most if most > x[j] else x[j]  # NaN counts as the largest
    total = _ZERO
    for j in range(legal.size):
        if legal[j]:
            total += exponential(x[j] - most)
    shift = most + np.log(total) if count > 0 else np.float32(np.nan)
    for j in range(legal.size):
        x[j] = exponential(x[j] - shift) if legal[j] else _ZERO
    return shift, count


@inner
def floor_share(rules: HeadRules, count: int) -> Any:
    """Return the floor of each of `count` choices."""
    return min(np.float32(rules.floor), np.float32(rules.mass) / np.float32(max(count, 1)))


@inner
def _counts(z: NetShape, rules: HeadRules, op: int, head: int) -> bool:
    """Return whether a head takes part in log-probs."""
    return bool(not z.causal or rules.relevance[op, head])


@inner
def score_head(
    z: NetShape, a: Activations, rules: HeadRules, sampling: Sampling, steps: StepInputs, act: Array, head: int,
    column: int, out: StepScores,
) -> None:  # fmt: skip
    """Score one head's actions of all steps, after choosing them and the masks in force where they are not given, and
    replace its logits by probabilities. Its place in the choices of all heads is `column`."""
    size = rules.sizes[head]
    logits, floored = np.empty(size, np.float32), np.empty(size, np.float32)
    for p in range(steps.order.size):
        step = steps.order[p]
        x = act[a.probs + p * z.choices + column :][:size]
        legal = steps.masks[step, column : column + size]
        if sampling.on:
            restrict(z, rules.relevance, sampling, steps.actions, step, head, column, legal)
        logits[:] = x
        shift, count = _softmax(x, legal)
        share = floor_share(rules, count)
        kept = _ONE - np.float32(count) * share
        if sampling.on:
            for j in range(size):
                floored[j] = kept * x[j] + share if legal[j] else _ZERO
            steps.actions[step, head] = choose(floored, sampling.noise[step, head], sampling.greedy[step])
        choice, counts = steps.actions[step, head], _counts(z, rules, steps.actions[step, 0], head)
        out.log_probs[step, head] = _ZERO
        if counts:
            out.log_probs[step, head] = np.float32(-np.inf)
            if legal[choice]:
                out.log_probs[step, head] = np.log(kept * x[choice] + share) if z.floor else logits[choice] - shift
        if not sampling.on:
            out.entropies[step, head] = _entropy(z, x, legal, count, kept, share) if counts else _ZERO


@inner
def _entropy(z: NetShape, probs: Array, legal: Array, count: int, kept: Any, share: Any) -> Any:
    entropy = _ZERO
    for j in range(probs.size):
        if (legal[j] and probs[j] > _ZERO) or (legal[j] and z.floor):
            q = kept * probs[j] + share if z.floor else probs[j]
            entropy -= q * np.log(q)
    return entropy / np.log(np.float32(max(count, 2)))


@inner
def score_gradient(
    z: NetShape, a: Activations, rules: HeadRules, steps: StepInputs, act: Array, given: StepScores, dlogits: Array
) -> None:
    """Write the gradients with respect to logits to `dlogits [N * choices]`, in the order of processing."""
    for p in range(steps.order.size):
        step, column = steps.order[p], 0
        op = steps.actions[step, 0]
        for head in range(z.heads):
            size = rules.sizes[head]
            at = p * z.choices + column
            probs, dhead = act[a.probs + at : a.probs + at + size], dlogits[at : at + size]
            legal = steps.masks[step, column : column + size]
            column += size
            if not _counts(z, rules, op, head):
                dhead[:] = _ZERO
                continue
            pull, pressure = given.log_probs[step, head], given.entropies[step, head]
            _row_gradient(z, rules, probs, legal, steps.actions[step, head], pull, pressure, dhead)


@inner
def _row_gradient(
    z: NetShape, rules: HeadRules, probs: Array, legal: Array, choice: int, pull: Any, pressure: Any, dhead: Array
) -> None:
    count = 0
    for j in range(legal.size):
        count += legal[j]
    share, kept = _ZERO, _ONE
    if z.floor:
        share = floor_share(rules, count)
        kept = _ONE - np.float32(count) * share
        # In [0, 1], even if both probabilities underflow.
        pull *= kept * probs[choice] / (kept * probs[choice] + share)
    scale = -pressure * kept / np.log(np.float32(max(count, 2)))
    along = _ZERO
    for j in range(legal.size):
        dhead[j] = _ZERO
        q = kept * probs[j] + share
        if legal[j] and q > _ZERO:
            dhead[j] = (np.log(q) + _ONE) * scale
            along += probs[j] * dhead[j]
    for j in range(legal.size):
        dhead[j] = probs[j] * (dhead[j] - along - pull)
    if legal[choice]:
        dhead[choice] += pull
