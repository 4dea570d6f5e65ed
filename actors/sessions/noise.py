"""Sampling noise of a step: a function of session seed and step index only, so that all replicas sample alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from actors.rng import Purpose, stream

SERVING_SEED = 0  # used where a training run has its own seed


def step_noise(seed: int, step_index: int, heads: int) -> NDArray[np.float64]:
    """Return `[heads]` uniform samples from [0, 1)."""
    return stream(SERVING_SEED, seed, Purpose.POLICY, step_index).random(heads)
