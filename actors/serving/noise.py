"""The noise of a sampled step: a function of the session's seed and the step's index, on whatever machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from actors.env.rng import Purpose, stream

SERVED = 0  # in the place of a run's seed


def step_noise(seed: int, step_index: int, heads: int) -> NDArray[np.float64]:
    """`[heads]` uniform in [0, 1)."""
    return stream(SERVED, seed, Purpose.POLICY, step_index).random(heads)
