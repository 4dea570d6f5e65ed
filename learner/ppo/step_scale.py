"""The share of the learning rate that an update takes, by how much its batch says.

Advantages are normalized, and Adam's steps are as long for a small gradient as for a large one. So a batch in which
nothing happens would move the policy as far as one with failures in it, along the errors of the critic: a solved task
is forgotten again. Such a batch is told by two numbers.

- Its advantages deviate by less than `QUIET` of what is usual in the updates before. The share falls in proportion.
- Values err by more than returns vary (`explained_variance` is negative), so that advantages are mostly errors of the
  critic. The share is Var[returns] / Var[returns - values] = 1 / (1 - explained_variance).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, sqrt

from torch.optim import Optimizer

QUIET = 0.5
LEAST = 0.1  # share, so that no run stands still
MIN_STEP = 0.1  # of the running variance


def usual_deviation(before: float, deviation: float) -> float:
    """Return the running deviation of advantages after a batch whose advantages deviate by `deviation`; `before` is 0
    if it is the first. Numbers that are not finite change nothing."""
    if not isfinite(deviation) or not before:
        return deviation if isfinite(deviation) else before
    return sqrt((1.0 - MIN_STEP) * before**2 + MIN_STEP * deviation**2)


def step_scale(deviation: float, usual: float, explained_variance: float) -> float:
    """Return the share of the learning rate, between `LEAST` and 1, for a batch whose advantages deviate by
    `deviation`, where `usual` is the running deviation with this batch."""
    loud = deviation / (QUIET * usual) if usual else 1.0
    share = min(1.0, loud) / (1.0 - min(0.0, explained_variance))
    return max(LEAST, share) if isfinite(share) else 1.0


@contextmanager
def scaled(optimizer: Optimizer, share: float) -> Iterator[None]:
    """Multiply the optimizer's learning rates by `share` within the context."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = share * rate
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
