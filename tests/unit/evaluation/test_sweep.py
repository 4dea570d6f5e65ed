"""The sweeps, compared with a simulation that trains one epoch at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from actors.slots.objective import Prices
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.results import equal_compute, sweep
from tests.support.made_up_rows import built_row

SCALES = (1, 2, 4, 8)


def _built(rng: np.random.Generator, horizon: int) -> list[EpisodeResult]:
    rows = []
    for k in SCALES:
        curve = (10.0, *np.cumsum(rng.normal(2, 5, horizon)) + 10)
        cost = float(np.log2(k) * rng.uniform(1, 2))
        own = replace(built_row(k, curve[-1] - 10), curve=curve, epochs=horizon, compute=cost)
        rows.append(replace(own, accuracy=curve[-1]))
    return rows


def test_the_sweep_keeps_the_width_with_the_highest_objective_and_pays_for_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        built, prices = _built(rng, 12), _prices(rng)
        found, (p, c) = sweep(built, prices), prices
        values = [row.gain - p * row.doublings for row in built]
        cost = sum(2**row.compute for row in built)
        assert found.objective(prices) == pytest.approx(max(values) - c * np.log2(cost))
        assert found.doublings == built[values.index(max(values))].doublings
        assert found.flops == pytest.approx(cost)


def _prices(rng: np.random.Generator) -> Prices:
    p = float(rng.choice([0.5, 1, 2, 4]))
    return Prices(p, p * float(rng.choice([0.0, 0.25])))


class Simulation:
    """Successive halving by hand: widths are trained one epoch at a time out of a purse."""

    def __init__(self, built: list[EpisodeResult], price: float, flops: float) -> None:
        self.built, self.price = built, price
        self.epoch_flops = {k: 2**row.compute / row.epochs for k, row in enumerate(built)}
        self.trained = dict.fromkeys(self.epoch_flops, 0)
        self.purse = 0.0
        running = self._affordable(flops / 3)
        for keep in (2, 1, 1):
            self.purse += flops / 3
            self._train(running, at_least_one=keep == 2)
            running = sorted(running, key=self._objective, reverse=True)[:keep]
        self.winner = running[0]

    def _affordable(self, third: float) -> list[int]:
        for widest in (3, 2, 1):
            if sum(self.epoch_flops[k] for k in range(widest + 1)) <= third:
                return list(range(widest + 1))
        return [0]

    def _train(self, running: list[int], at_least_one: bool) -> None:
        round_flops = sum(self.epoch_flops[k] for k in running)
        while self.trained[running[0]] < len(self.built[0].curve) - 1:
            if self.purse < round_flops * (1 - 1e-12) and not (at_least_one and not self.trained[running[0]]):
                return
            self.purse -= round_flops
            for k in running:
                self.trained[k] += 1

    def _objective(self, k: int) -> float:
        row = self.built[k]
        return row.curve[self.trained[k]] - row.curve[0] - self.price * row.doublings


def test_equal_compute_matches_a_simulation() -> None:
    rng = np.random.default_rng(1)
    winners, trained = set(), set()
    for _ in range(400):
        built, (p, c) = _built(rng, 12), _prices(rng)
        flops = float(rng.uniform(0.2, 40))
        slow, found = Simulation(built, p, flops), equal_compute(built, Prices(p, c), flops)
        own = built[slow.winner]
        assert found.doublings == own.doublings
        assert found.epochs == slow.trained[slow.winner]
        assert found.accuracy == own.curve[found.epochs]
        spent = sum(slow.trained[k] * slow.epoch_flops[k] for k in range(4))
        assert found.flops == pytest.approx(max(spent, 1.0))  # what the bare host does not need saves nothing
        paid = c * max(np.log2(spent), 0.0)
        assert found.objective(Prices(p, c)) == pytest.approx(slow._objective(slow.winner) - paid)
        assert spent <= max(flops * (1 + 1e-9), slow.epoch_flops[0])
        assert np.isnan(found.test_accuracy) == (found.epochs < 12)
        winners.add(slow.winner)
        trained.add(tuple(n > 0 for n in slow.trained.values()))
    assert winners == {0, 1, 2, 3}
    assert len(trained) == 4  # one, two, three and four widths
