"""Choosing from a masked categorical distribution with probability floors (see `actors.policy.distribution`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.kernels.decorators import ordered
from actors.kernels.policy.functions import exponential

Array = NDArray[Any]


@ordered
def probabilities(logits: Array, legal: Array, floor: Any, mass: Any, probs: Array) -> None:
    """Compute `probs [n]` from `logits [n]` and the mask `legal [n]`. Without legal choices they are NaN."""
    most, count = np.float32(-np.inf), 0
    for j in range(legal.size):
        if legal[j]:
            count += 1
            most = most if most > logits[j] else logits[j]  # NaN counts as the largest
    total = np.float32(0.0)
    for j in range(legal.size):
        probs[j] = exponential(logits[j] - most) if legal[j] else np.float32(0.0)
        total += probs[j]
    if count == 0:
        probs[:] = np.float32(np.nan)
        return
    share = min(np.float32(floor), np.float32(mass) / np.float32(count))
    kept = (np.float32(1.0) - np.float32(count) * share) / total
    for j in range(legal.size):
        if legal[j]:
            probs[j] = kept * probs[j] + share


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
