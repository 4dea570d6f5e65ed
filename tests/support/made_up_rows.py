"""Made-up rows of an evaluation, with numbers that tests can foresee."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from deploy.evaluation.play import Row
from deploy.evaluation.players import BEST, BLIND, BUILT, CHOOSER, FIXED, GAP, NEVER, POLICY
from deploy.evaluation.suite import PRICES

HORIZON = 10
PARAMS = 100
AtPrices = dict[float, list[dict[str, list[Row]]]]
Rows = dict[str, AtPrices]
Grows = Callable[[int, float], float]
"""Doublings, by seed and price."""


def made_up_row(gain: float, **changes: object) -> Row:
    """An episode of a host of 8 units that does not grow."""
    own = Row(0, gain, 0.0, 50 + gain, 50 + gain, 8, PARAMS, PARAMS, 0, 0, False, HORIZON, 0, True, 1e6, 1e5, 1e3)
    return replace(own, **changes)  # type: ignore[arg-type]


def grown_row(gain: float, doublings: float, **changes: object) -> Row:
    """An episode in which the parameters doubled so often at the start."""
    grown = {"rent": doublings, "final_params": PARAMS * 2**doublings, "fossilized": int(doublings > 0)}
    return made_up_row(gain, **(grown | changes))


def built_row(scale: int, gain: float, width: int = 8) -> Row:
    """A host that was built wider: it has learned everything after half of the horizon, and costs scale**2."""
    k = np.log2(scale)
    curve = tuple(50 + gain * min(1.0, 2 * t / HORIZON) for t in range(HORIZON + 1))
    cost = 1e6 * scale**2
    return grown_row(gain, 2 * k, fossilized=0, curve=curve, training_flops=cost, host_width=width)


def made_up_rows(families: Sequence[str] = ("a", "b"), seeds: int = 6, policies: int = 2, noise: float = 0.01) -> Rows:
    """Rows of all players. In half of the episodes twice the width gains ten points, in the others it gains nothing.

    The policy sees which; schedules and the blind policy grow in each episode or in none.
    """
    rng = np.random.default_rng(0)

    def pays(seed: int) -> bool:
        return seed % 2 == 0

    def line(grow: Grows, count: int = 1, late: float = 0.0) -> AtPrices:
        def one(seed: int, price: float) -> Row:
            size = grow(seed, price)
            gain = 10.0 * min(size, 2) / 2 * pays(seed) - late * (size > 0) + noise * float(rng.standard_normal())
            width = 4 if pays(seed) else 16
            return grown_row(gain, size, training_flops=2e6 if size else 1e6, seed=seed, host_width=width)

        return {w: [{f: [one(s, w) for s in range(seeds)] for f in families} for _ in range(count)] for w in PRICES}

    def built(scale: int) -> AtPrices:
        def one(seed: int) -> Row:
            return replace(built_row(scale, 10.0 * (scale > 1) * pays(seed), 4 if pays(seed) else 16), seed=seed)

        own = [{f: [one(s) for s in range(seeds)] for f in families}]
        return dict.fromkeys(PRICES, own)

    rows: Rows = {NEVER: built(1), **{BUILT.format(k): built(k) for k in (2, 4, 8)}}
    rows[BEST] = line(lambda s, w: 1.0 if w < 2 else 0.0)
    rows[FIXED] = line(lambda s, w: 1.0)
    rows[GAP] = line(lambda s, w: 2.0 * pays(s) if w < 1 else 0.0)
    rows[CHOOSER] = line(lambda s, w: 1.0 * pays(s))
    rows[POLICY] = line(lambda s, w: {0.5: 2.0, 1.0: 1.95, 2.0: 1.9, 4.0: 1.8}[w] * pays(s), policies, late=0.2)
    rows[BLIND] = line(lambda s, w: 1.0, policies)
    return rows
