"""Deterministic decisions: the median of the policy's distribution instead of a sample.

A policy that decides once per epoch spreads its choice over many steps. Where growing at some time is all but certain,
waiting may still be the most likely op of every single step, so that the most likely actions never grow. Where the
first op is WAIT, a deterministic policy therefore acts at the median of the time to act: at the first step by which a
sampling policy would more likely than not have acted. The other heads, whose choices are mostly ordered (sizes and
speeds), take their medians too.

Actions are drawn by inverse transform sampling, so the noise alone decides between a sample and the median.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from actors.types.actions import Op
from actors.types.spaces import Spaces

DECISIONS = "median"
"""How deterministic policies decide: part of the identity of kept episodes."""
MEDIAN = 0.5
BELOW_ONE = 1.0 - 2.0**-24


def has_median(spaces: Spaces) -> bool:
    """Return whether the first op is WAIT. In other spaces, deterministic policies take the most likely choices."""
    return spaces.action.heads[0].choices[0] == Op.WAIT.name


def median_noise(hazard: NDArray[np.float64], heads: int) -> NDArray[np.float64]:
    """Return the noise `[N, H]` that selects the median decisions.

    `hazard [N]` is the cumulative hazard of acting: minus the log of the probability, in nats, that the policy would
    have waited at all steps since it last acted. See `next_hazard`.
    """
    noise = np.full((len(hazard), heads), MEDIAN)
    noise[:, 0] = np.minimum(MEDIAN * np.exp(hazard), BELOW_ONE)  # WAIT if P(still waiting) exceeds a half
    return noise


def next_hazard(
    hazard: NDArray[np.float64], actions: NDArray[np.int64], log_probs: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the cumulative hazard `[N]` after `actions [N, H]`, which had these `log_probs [N, H]`; 0 after an op
    other than WAIT."""
    return np.where(actions[:, 0] == Op.WAIT, hazard - log_probs[:, 0], 0.0)
