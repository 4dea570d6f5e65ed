"""Successive halving over widths (Karnin et al., 2013; Jamieson and Talwalkar, 2016), by curves of full trainings.

All widths begin to train. After a share of the horizon, the better half of them (by validation, less the price of
parameters) continues, and after twice that share the better half of those. The last one trains to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

SHARES = tuple(sixteenths / 16 for sixteenths in range(8, 0, -1))
"""Of the horizon, before the first half is dropped."""


class Arms(NamedTuple):
    """Widths that one training could have, the bare model's first."""

    curves: Sequence[Sequence[float]]  # validation in percent by epoch, less the price of the parameters
    costs: Sequence[float]  # training FLOPs of the whole horizon, in those of the first


class Halved(NamedTuple):
    """What halving came to."""

    kept: int  # index of the width
    cost: float  # training FLOPs of all widths, in those of the bare model


def halve(arms: Arms, count: int, share: float) -> Halved:
    """Return what is left of the first `count` widths, and what was spent."""
    alive, trained, spent = list(range(count)), 0, 0.0
    horizon = len(arms.curves[0])
    until = max(1, round(share * horizon))
    while len(alive) > 1:
        until = min(until, horizon)
        spent += (until - trained) / horizon * sum(arms.costs[i] for i in alive)
        alive = sorted(alive, key=lambda i: -arms.curves[i][until - 1])[: ceil(len(alive) / 2)]
        trained, until = until, 2 * until
    return Halved(alive[0], spent + (horizon - trained) / horizon * arms.costs[alive[0]])


def halved_within(trainings: Sequence[Arms], budget: float) -> list[Halved]:
    """Halve all trainings alike: with as many widths and, then, as late as mean FLOPs of at most `budget` allow."""
    for count in range(min((len(arms.curves) for arms in trainings), default=0), 0, -1):
        for share in SHARES:
            found = [halve(arms, count, share) for arms in trainings]
            if np.mean([one.cost for one in found]) <= budget:
                return found
    return [Halved(0, 1.0) for _ in trainings]
