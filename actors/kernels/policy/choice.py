"""Choosing actions: masks in force, and samples from a categorical distribution (see `actors.policy.distribution`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from actors.kernels.decorators import Array, inner, ordered
from actors.kernels.policy.sizes import NetShape


class Sampling(NamedTuple):
    """How the actions of N steps are chosen: `ActionMasks`, each flat after the first dimension, and noise. Where the
    actions are given, nothing is read."""

    on: bool
    op: Array  # bool [N, ops]
    slot: Array  # [N, ops * S], or [N, 0]
    rest: Array  # [N, ops * S * R], or [N, R]
    noise: Array  # float64 [N, H]
    greedy: Array  # bool [N]: steps that take the most likely choices


@inner
def restrict(
    z: NetShape, relevance: Array, sampling: Sampling, actions: Array, step: int, head: int, column: int, legal: Array
) -> None:
    """Write the mask in force of one head, given the earlier choices in `actions [N, H]`. The mask's first place in the
    flat masks of all heads is `column`."""
    op = actions[step, 0] if head > 0 else 0
    if head > 0 and not relevance[op, head]:
        for j in range(legal.size):
            legal[j] = j == 0 or not z.causal
        return
    mask, first = sampling.op[step], 0
    if head > 0 and head >= z.heads - z.rest:
        mask, first = sampling.rest[step], column - z.ops - z.slots
        if z.slots > 0:
            first += (op * z.slots + actions[step, 1]) * (z.choices - z.ops - z.slots)
    elif head > 0:
        mask, first = sampling.slot[step], op * z.slots
    for j in range(legal.size):
        legal[j] = mask[first + j]


@ordered
def choose(probs: Array, noise: float, greedy: bool) -> int:
    """Return the most likely choice, or the first whose cumulative probability exceeds `noise` times the total."""
    choice = 0
    if greedy:
        for j in range(1, probs.size):
            if probs[j] > probs[choice]:
                choice = j
        return choice
    total = 0.0
    for j in range(probs.size):
        total += np.float64(probs[j])
    threshold, cumulative = noise * total, 0.0
    for j in range(probs.size):
        cumulative += np.float64(probs[j])
        if probs[j] > np.float32(0.0):
            choice = j  # the last possible one, should rounding leave none above the threshold
        if cumulative > threshold:
            break
    return choice
