"""Confidence intervals, in particular for paired comparisons on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A mean with its confidence bounds, in the unit of the data."""

    mean: float
    low: float
    high: float

    @property
    def size(self) -> float:
        """The number of the three that is farthest from zero, as a positive one."""
        return max(map(abs, self))


def paired_interval(
    a: Sequence[float], b: Sequence[float], seed: int = 0, resamples: int = 10_000, level: float = 0.95
) -> Interval:
    """Mean of `a[i] - b[i]` with a percentile-bootstrap interval over pairs (Efron, 1979).

    Raises `ValueError` if the lengths differ, there are fewer than two pairs, or a value is not finite.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} values cannot be paired with {len(b)}")
    return mean_interval((np.asarray(a, np.float64) - np.asarray(b, np.float64)).tolist(), seed, resamples, level)


def mean_interval(values: Sequence[float], seed: int = 0, resamples: int = 10_000, level: float = 0.95) -> Interval:
    """Mean of `values` with a percentile-bootstrap interval. Raises `ValueError` like `paired_interval`."""
    x = np.asarray(values, dtype=np.float64)  # [n]
    if x.size < 2:
        raise ValueError(f"an interval needs at least two values, got {x.size}")
    if not np.isfinite(x).all():
        raise ValueError("an interval needs finite values")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: give a value between 0 and 1")
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    chunk = max(1, 1_000_000 // x.size)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        means[start : start + rows] = x[rng.integers(0, x.size, size=(rows, x.size))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(x.mean()), float(low), float(high))


def stratified_mean(values: ArrayLike, strata: ArrayLike) -> Interval:
    """Mean of the strata's means, weighted equally, with a normal 95% interval.

    Unlike the plain mean, it does not depend on how many episodes of each task a batch happens to contain.
    """
    x, names = np.asarray(values, dtype=np.float64), np.asarray(strata)
    groups = [x[names == name] for name in np.unique(names)]
    mean = float(np.mean([g.mean() for g in groups]))
    spread = sum(g.var(ddof=1) / g.size for g in groups if g.size > 1)
    error = 1.96 * float(np.sqrt(spread)) / len(groups)
    return Interval(mean, mean - error, mean + error)
