"""Confidence interval of a batch's mean return."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's t interval of the mean of `[n]` independent values; None for fewer than two. It is cheap enough
    for every update; reports use the bootstrap of `deploy/report/statistics.py`."""
    n = len(values)
    if n < 2:
        return None
    x = np.asarray(values, dtype=np.float64)
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2)) * float(x.std(ddof=1)) / math.sqrt(n)
    return float(x.mean()) - half, float(x.mean()) + half
