"""What may be concluded from P policies on F families and S episode seeds: estimates with intervals.

Policies, families and episodes are all drawn at random, and what they share does not average out over the others: five
policies on twenty seeds are not a hundred independent episodes. The bootstrap resamples policies, then families, then
seeds within each family (Davison & Hinkley, 1997, section 3.8; Owen, 2007, for crossed factors). With five policies
such a bootstrap is too narrow by sqrt(4/5) and has normal tails, and it counts the noise of single episodes three times
over; so its deviations are scaled to the spread that the means of policies and of families show, and widened to
Student's t with Satterthwaite's degrees of freedom. Where neither policies nor families differ at all that is too
wide, never too narrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from deploy.report.statistics import Interval

Array = NDArray[np.float64]
RESAMPLES = 2000
TAIL = 0.975  # of an interval of 95%
ROWS_AT_ONCE = 500_000


def differences(a: Array, b: Array, same_policies: bool = False) -> Array:
    """`[P, Q, F, S]` of `a [P, F, S]` minus `b [Q, F, S]`, every policy with every other; `[P, 1, F, S]` where row p of
    `b` belongs to policy p of `a`."""
    return (a - b)[:, None] if same_policies else a[:, None] - b[None]


class Spread(NamedTuple):
    """Of a mean over `[P, Q, F, S]`."""

    error: float  # standard error
    freedom: float  # degrees of freedom


def spread(x: Array) -> Spread:
    """By the means of each factor that was drawn more than once; with a single family its episodes take its place."""
    factors = [x.mean((1, 2, 3)), x.mean((0, 2, 3)), x.mean((0, 1, 3)) if x.shape[2] > 1 else x.mean((0, 1, 2))]
    parts = [(float(m.var(ddof=1)) / m.size, m.size - 1) for m in factors if m.size > 1]
    variance = sum(v for v, _ in parts)
    if not variance:
        return Spread(0.0, float(max((n for _, n in parts), default=1)))
    return Spread(variance**0.5, variance**2 / sum(v**2 / n for v, n in parts))


def resampled(shape: tuple[int, ...], resamples: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Index arrays for R resamples of `[P, Q, F, S]` at a time: policies, then families, then seeds within each."""
    rng = np.random.default_rng(0)
    p, q, f, s = shape
    most = max(1, ROWS_AT_ONCE // (p * q * f * s))
    for start in range(0, resamples, most):
        r = min(most, resamples - start)
        yield (
            rng.integers(0, p, (r, p))[:, :, None, None, None],
            rng.integers(0, q, (r, q))[:, None, :, None, None],
            rng.integers(0, f, (r, f))[:, None, None, :, None],
            rng.integers(0, s, (r, f, s))[:, None, None],
        )


def interval(x: Array, resamples: int = RESAMPLES) -> Interval:
    """The mean of `x [P, Q, F, S]` with its hierarchical bootstrap interval of 95%."""
    _check(x)
    drawn = np.concatenate([x[index].mean((1, 2, 3, 4)) for index in resampled(x.shape, resamples)])
    return _calibrated(float(x.mean()), drawn, drawn, x)


def share(gained: Array, gap: Array, resamples: int = RESAMPLES) -> Interval | None:
    """Mean of `gained [P, 1, F, S]` over that of `gap [1, 1, F, S]`, families and seeds resampled together; None where
    there is no gap."""
    _check(gained)
    if gap.mean() <= 0:
        return None
    means = (
        (gained[p, q, f, s].mean((1, 2, 3, 4)), gap[0, 0][f, s].mean((1, 2, 3, 4)))
        for p, q, f, s in resampled(gained.shape, resamples)
    )
    above, below = map(np.concatenate, zip(*means, strict=True))
    sound = below > 0
    if sound.mean() < 0.95:
        return None  # the gap itself is not certain: its share means nothing
    return _calibrated(float(gained.mean() / gap.mean()), above[sound] / below[sound], above, gained)


def _calibrated(estimate: float, drawn: Array, means: Array, x: Array) -> Interval:
    """Percentiles of `drawn`, scaled so that `means`, drawn alike, would have the spread that `x` has."""
    wanted, seen = spread(x), float(means.std())
    widen = float(stats.t.ppf(TAIL, wanted.freedom) / stats.norm.ppf(TAIL))
    factor = widen * wanted.error / seen if seen > 0 else 0.0
    low, high = np.quantile(drawn - drawn.mean(), [1 - TAIL, TAIL]) * factor
    return Interval(estimate, estimate + float(low), estimate + float(high))


def _check(x: Array) -> None:
    if x.ndim != 4 or x.size < 2:
        raise ValueError(f"an interval needs at least two rows of [policies, others, families, seeds], got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("an interval needs finite values")
