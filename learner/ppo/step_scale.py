"""The share of the learning rate that an update takes: less than 1 if its batch is uninformative.

Advantages are normalized, and Adam's steps are as long for a small gradient as for a large one. Without this share, a
batch in which nothing goes wrong moves the policy as far as one with failures, in the direction of the critic's errors,
and the policy forgets a task that it had solved. A batch is uninformative in two cases.

- The standard deviation of its advantages is less than `QUIET` times the running one. The share falls in proportion.
- The critic's errors vary more than the returns (`explained_variance` is negative), so that advantages are mostly these
  errors. The share is Var[returns] / Var[returns - values] = 1 / (1 - explained_variance).

If both hold, the two shares are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, sqrt

from torch.optim import Optimizer

QUIET = 0.5
LEAST = 0.1  # the smallest share, so that training never stops entirely
AVERAGE_STEP = 0.1  # of the exponential moving average of the variance


def running_std(before: float, std: float) -> float:
    """Return the running standard deviation of advantages after a batch in which it is `std`. `before` is the one
    before that batch, 0 if there was none. A `std` that is not finite is left out."""
    if not isfinite(std):
        return before
    return sqrt((1.0 - AVERAGE_STEP) * before**2 + AVERAGE_STEP * std**2) if before else std


def step_scale(std: float, usual: float, explained_variance: float) -> float:
    """Return the share of the learning rate, from `LEAST` to 1. `std` is the standard deviation of the batch's
    advantages, `usual` the running one, which includes this batch."""
    relative = std / (QUIET * usual) if usual else 1.0
    share = min(1.0, relative) / (1.0 - min(0.0, explained_variance))
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
