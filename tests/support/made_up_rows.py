"""Made-up rows of an evaluation, with numbers that tests can foresee."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from actors.slots.objective import Prices
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import BEST, BLIND, BUILT, CHOOSER, FEEDFORWARD, NEVER, NO_PRUNE, POLICY, TRIAL
from deploy.evaluation.suite import ALL_PRICES

HORIZON = 10
AtPrices = dict[Prices, list[dict[str, list[EpisodeResult]]]]
Rows = dict[str, AtPrices]
Grows = Callable[[int, float], float]
"""Doublings, by seed and price of parameters."""


def made_up_row(gain: float, **changes: object) -> EpisodeResult:
    """An episode of a host that does not grow."""
    ops = (HORIZON, 0, 0, 0, 0, 0)
    own = EpisodeResult(0, gain, 0.0, 0.0, 50 + gain, 50 + gain, 0, HORIZON, 0, ops)
    return replace(own, **changes)


def grown_row(gain: float, doublings: float, **changes: object) -> EpisodeResult:
    """An episode whose model has doubled so often at the end, and in which a second seed was pruned."""
    ops = {"ops": (HORIZON - 5, 2, 0, 1, 0, 2)} if doublings else {}
    return made_up_row(gain, **({"doublings": doublings, "joined": int(doublings > 0)} | ops | changes))


def built_row(scale: int, gain: float) -> EpisodeResult:
    """A host that was built wider: it has learned everything after half of the horizon, and costs scale**2."""
    k = float(2 * np.log2(scale))
    curve = tuple(50 + gain * min(1.0, 2 * t / HORIZON) for t in range(HORIZON + 1))
    return made_up_row(gain, doublings=k, compute=k, curve=curve)


def made_up_rows(families: Sequence[str] = ("a", "b"), seeds: int = 6, policies: int = 2, noise: float = 0.01) -> Rows:
    """Rows of all players. In half of the episodes twice the width gains ten points, in the others it gains nothing.

    The policy sees which; rules and the blind policy grow in each episode or in none.
    """
    rng = np.random.default_rng(0)

    def pays(seed: int) -> bool:
        return seed % 2 == 0

    def line(grow: Grows, count: int = 1, late: float = 0.0) -> AtPrices:
        def one(seed: int, price: float) -> EpisodeResult:
            size = grow(seed, price)
            gain = 10.0 * min(size, 2) / 2 * pays(seed) - late * (size > 0) + noise * float(rng.standard_normal())
            return grown_row(gain, size, compute=float(size > 0), seed=seed)

        return {
            w: [{f: [one(s, w.doubling) for s in range(seeds)] for f in families} for _ in range(count)]
            for w in ALL_PRICES
        }

    def built(scale: int) -> AtPrices:
        def one(seed: int) -> EpisodeResult:
            return replace(built_row(scale, 10.0 * (scale > 1) * pays(seed)), seed=seed)

        own = {f: [one(s) for s in range(seeds)] for f in families}
        return {w: [own] for w in ALL_PRICES}

    sees = {0.5: 2.0, 1.0: 1.95, 2.0: 1.9, 4.0: 1.8}
    rows: Rows = {NEVER: built(1), **{BUILT.format(k): built(k) for k in (2, 4, 8)}}
    rows[BEST] = line(lambda s, p: 1.0 if p < 2 else 0.0)
    rows[TRIAL] = line(lambda s, p: 1.0)
    rows[CHOOSER] = line(lambda s, p: 1.0 * pays(s))
    rows[POLICY] = line(lambda s, p: sees[p] * pays(s), policies, late=0.2)
    rows[NO_PRUNE] = line(lambda s, p: sees[p] * pays(s), policies, late=0.9)
    rows[FEEDFORWARD] = line(lambda s, p: sees[p] * pays(s), policies, late=0.9)
    rows[BLIND] = line(lambda s, p: 1.0, policies)
    return rows
