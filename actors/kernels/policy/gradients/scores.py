"""Log-probs and entropies of given actions, and their gradients (see `actors.policy.scoring` for the formulas)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import inner, ordered
from actors.kernels.policy.functions import exponential
from actors.kernels.policy.gradients.encoder import StepInputs
from actors.kernels.policy.gradients.sizes import Activations, NetShape

Array = NDArray[Any]
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class HeadRules(NamedTuple):
    """What the heads' distributions are made from."""

    sizes: Array  # int64 [H], choices of each head
    counted: Array  # bool [ops, H], heads that take part in log-probs
    floor: float
    mass: float


class StepScores(NamedTuple):
    """Results, or the gradients with respect to them, in the order of the batch."""

    log_probs: Array  # [N, H]
    entropies: Array  # [N, H]
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
def _share(rules: HeadRules, count: int) -> Any:
    """Return the floor of each of `count` choices."""
    return min(np.float32(rules.floor), np.float32(rules.mass) / np.float32(max(count, 1)))


@inner
def score(z: NetShape, a: Activations, rules: HeadRules, steps: StepInputs, act: Array, out: StepScores) -> None:
    """Score the actions of all steps, and replace the kept logits by probabilities."""
    for p in range(steps.order.size):
        step, column = steps.order[p], 0
        op = steps.actions[step, 0]
        for head in range(z.heads):
            size = rules.sizes[head]
            x = act[a.probs + p * z.choices + column : a.probs + p * z.choices + column + size]
            legal, choice = steps.masks[step, column : column + size], steps.actions[step, head]
            chosen = x[choice]
            shift, count = _softmax(x, legal)
            share = _share(rules, count)
            kept = _ONE - np.float32(count) * share
            column += size
            if not rules.counted[op, head]:
                out.log_probs[step, head] = out.entropies[step, head] = _ZERO
                continue
            out.log_probs[step, head] = np.float32(-np.inf)
            if legal[choice]:
                out.log_probs[step, head] = np.log(kept * x[choice] + share) if z.floor else chosen - shift
            entropy = _ZERO
            for j in range(size):
                if (legal[j] and x[j] > _ZERO) or (legal[j] and z.floor):
                    q = kept * x[j] + share if z.floor else x[j]
                    entropy -= q * np.log(q)
            out.entropies[step, head] = entropy / np.log(np.float32(max(count, 2)))


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
            probs, own = act[a.probs + at : a.probs + at + size], dlogits[at : at + size]
            legal = steps.masks[step, column : column + size]
            column += size
            if not rules.counted[op, head]:
                own[:] = _ZERO
                continue
            pull, pressure = given.log_probs[step, head], given.entropies[step, head]
            _row_gradient(z, rules, probs, legal, steps.actions[step, head], pull, pressure, own)


@inner
def _row_gradient(
    z: NetShape, rules: HeadRules, probs: Array, legal: Array, choice: int, pull: Any, pressure: Any, own: Array
) -> None:
    count = 0
    for j in range(legal.size):
        count += legal[j]
    share, kept = _ZERO, _ONE
    if z.floor:
        share = _share(rules, count)
        kept = _ONE - np.float32(count) * share
        # In [0, 1], even if both probabilities underflow.
        pull *= kept * probs[choice] / (kept * probs[choice] + share)
    scale = -pressure * kept / np.log(np.float32(max(count, 2)))
    along = _ZERO
    for j in range(legal.size):
        own[j] = _ZERO
        q = kept * probs[j] + share
        if legal[j] and q > _ZERO:
            own[j] = (np.log(q) + _ONE) * scale
            along += probs[j] * own[j]
    for j in range(legal.size):
        own[j] = probs[j] * (own[j] - along - pull)
    if legal[choice]:
        own[choice] += pull
