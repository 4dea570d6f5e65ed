"""A straight line through what was measured over time, and how sure its slope is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SPANS = 20


class Trend(NamedTuple):
    """Change per hour, and the standard error of that."""

    per_h: float
    error_per_h: float


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Least squares through the means of equal spans of time: neighboring looks are much alike, and taking each for
    independent would make the error far too small. Needs three looks at different times."""
    times, heights = np.asarray(times_s, dtype=np.float64), np.asarray(values, dtype=np.float64)
    edges = np.linspace(times[0], times[-1], min(SPANS, len(times)) + 1)
    span = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(span)
    t = np.bincount(span, times)[counts > 0] / counts[counts > 0]
    y = np.bincount(span, heights)[counts > 0] / counts[counts > 0]
    if len(t) < 3:
        raise ValueError(f"{len(t)} spans of time hold a look: a slope and its error need three")
    x = t - t.mean()
    slope = float(x @ y / (x @ x))
    left = y - y.mean() - slope * x
    error = float(np.sqrt(left @ left / (len(t) - 2) / (x @ x)))
    return Trend(3600.0 * slope, 3600.0 * error)
