"""Confidence intervals, in particular for paired comparisons on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A mean with its confidence bounds, in the unit of the data."""

    mean: float
    low: float
    high: float

    @property
    def size(self) -> float:
        """The number of the three that is farthest from zero, as a positive one."""
        return max(map(abs, self))

    @property
    def verdict(self) -> str:
        """Whether the interval of a difference excludes zero, and on which side."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "not distinguishable"


def mean_interval(values: Sequence[float], resamples: int = 10_000) -> Interval:
    """Mean of `values`, such as differences of pairs, with a 95% percentile-bootstrap interval (Efron, 1979). Raises
    `ValueError` if there are fewer than two, or one is not finite."""
    x = np.asarray(values, dtype=np.float64)  # [n]
    if x.size < 2:
        raise ValueError(f"an interval needs at least two values, got {x.size}")
    if not np.isfinite(x).all():
        raise ValueError("an interval needs finite values")
    rng = np.random.default_rng(0)
    means = np.empty(resamples)
    chunk = max(1, 1_000_000 // x.size)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        means[start : start + rows] = x[rng.integers(0, x.size, size=(rows, x.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(x.mean()), float(low), float(high))


def stratified_mean(counts: Floats, sums: Floats, squares: Floats) -> Floats:
    """Mean of the strata's means, weighted equally, with a normal 95% interval: `[3, ...]`, mean, low and high; NaN
    where no stratum has values. Of each stratum: the number of values, their sum and their sum of squares, each
    `[strata, ...]`.

    Unlike the plain mean, it does not depend on how many episodes of each task a batch happens to contain.
    """
    present = counts > 0
    strata = np.where(present.any(0), present.sum(0), np.nan)
    means = sums / np.maximum(counts, 1)
    spread = np.maximum(squares - counts * means**2, 0.0) / np.maximum(counts - 1, 1) / np.maximum(counts, 1)
    mean, error = means.sum(0) / strata, 1.96 * np.sqrt(spread.sum(0)) / strata
    return np.stack([mean, mean - error, mean + error])
