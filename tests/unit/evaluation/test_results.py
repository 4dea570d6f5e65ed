"""The tables, sweeps and intervals of an evaluation, compared with slow loops, a simulation and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from actors.slots.objective import Prices
from deploy.evaluation import statistics as st
from deploy.evaluation.page import ops_table
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import BEST, BLIND, BUILT, NEVER, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, WIDTHS_OF_SWEEP, Results, equal_compute, results_by_condition, sweep
from deploy.evaluation.suite import CONDITIONS, FREE, PRICED, PRICES
from tests.support.made_up_rows import Rows, built_row, made_up_rows

FAMILIES = ("a", "b", "c")


@pytest.fixture(scope="module")
def rows() -> Rows:
    return made_up_rows(FAMILIES, seeds=4, policies=3, noise=1.0)


@pytest.fixture(scope="module")
def both(rows: Rows) -> dict[str, Results]:
    return results_by_condition(rows, resamples=100)


@pytest.fixture(scope="module")
def results(both: dict[str, Results]) -> Results:
    return both[PRICED]


@pytest.mark.parametrize("condition", [FREE, PRICED])
def test_the_headline_figure_is_the_mean_over_prices_paired_by_episode(
    rows: Rows, both: dict[str, Results], condition: str
) -> None:
    results = both[condition]
    found = results.against(POLICY, BEST)
    assert found.shape == (3, 1, 3, 4)
    for p in range(3):
        for f, family in enumerate(FAMILIES):
            for s in range(4):
                total = 0.0
                for w in CONDITIONS[condition]:
                    c = w.doubling / 4 if condition == PRICED else 0.0
                    mine, other = rows[POLICY][w][p][family][s], rows[BEST][w][0][family][s]
                    total += mine.gain - w.doubling * mine.doublings - c * mine.compute
                    total -= other.gain - w.doubling * other.doublings - c * other.compute
                assert found[p, 0, f, s] == pytest.approx(total / 4)
    line = next(line for line in results.lines if line.name == BEST)
    assert line.policy_over.mean == pytest.approx(found.mean())
    assert line.policy_over.low < found.mean() < line.policy_over.high


def test_policies_are_compared_with_every_other_but_with_their_own_sweep(results: Results) -> None:
    pairs = ((POLICY, BLIND), (POLICY, EQUAL), (EQUAL, NEVER))
    assert [results.against(*pair).shape for pair in pairs] == [(3, 3, 3, 4), (3, 1, 3, 4), (3, 1, 3, 4)]


def test_the_sweeps_follow_from_the_built_hosts(rows: Rows, results: Results) -> None:
    for w, family in product(CONDITIONS[PRICED], FAMILIES):
        built = list(zip(*(rows[name][w][0][family] for name in WIDTHS_OF_SWEEP), strict=True))
        assert results.episodes[SWEEP][w][0][family] == [sweep(widths, w) for widths in built]
        for p, policy in enumerate(rows[POLICY][w]):
            flops = [episode.flops for episode in policy[family]]
            wanted = [equal_compute(widths, w, f) for widths, f in zip(built, flops, strict=True)]
            assert str(results.episodes[EQUAL][w][p][family]) == str(wanted)  # with NaN, which equals nothing


def test_lines_show_each_price_and_relative_costs(rows: Rows, results: Results) -> None:
    by_name = {line.name: line for line in results.lines}
    never = by_name[NEVER]
    assert (never.flops, never.doublings, never.bare, set(never.by_price.values())) == (1.0, 0.0, 1.0, {0.0})
    assert never.over_never is None
    wide = by_name[BUILT.format(4)]
    assert wide.flops == pytest.approx(16.0)
    assert wide.doublings == wide.compute == 4.0
    assert wide.by_price == pytest.approx({p: 5 - 4 * p - p for p in PRICES})  # ten points in half of the episodes
    assert (by_name[POLICY].flops, by_name[POLICY].compute) == (1.5, 0.5)  # in half of the episodes twice as many
    assert by_name[SWEEP].flops == pytest.approx(85.0)
    assert by_name[EQUAL].test_accuracy is None  # it was not read where training stopped early
    assert by_name[POLICY].policies == 3


def test_ops_are_shares_of_epochs_and_seeds_those_of_an_episode(results: Results) -> None:
    table = ops_table(PRICED, results)
    assert table.head[1:7] == ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "FOSSILIZE", "ADVANCE")
    policy = table.rows[0]
    # Half of the episodes grow: five of ten epochs wait there, two seeds germinate, one is pruned and one joins.
    assert policy == (POLICY, "75.0%", "10.0%", "0.0%", "5.0%", "0.0%", "10.0%", "1.00", "0.50", "0.50")


def test_families(results: Results) -> None:
    family = results.family_lines[1]
    assert (family.family, family.bare) == ("b", 0.5)
    assert family.policy_over_best.mean == pytest.approx(results.against(POLICY, BEST)[:, :, 1].mean())


def test_rules_alone_have_a_table(rows: Rows) -> None:
    alone = results_by_condition({name: own for name, own in rows.items() if name not in (POLICY, BLIND)})[FREE]
    assert {EQUAL, SWEEP} & set(alone.episodes) == {SWEEP}
    assert all(line.policy_over is None for line in alone.lines)
    assert alone.family_lines[0].bare is None


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


Array = NDArray[np.float64]
REPEATS = 400
NULLS: dict[str, Callable[[Callable[..., Array]], Array]] = {
    "policies": lambda n: (n(5, 1, 1) + 3.0 * n(1, 8, 20) + 3.0 * n(5, 8, 20))[:, None],
    "families": lambda n: (0.5 * n(5, 1, 1) + 2.0 * n(1, 8, 1) + 3.0 * n(1, 8, 20) + 3.0 * n(5, 8, 20))[:, None],
    "policies, few episodes": lambda n: (2.0 * n(5, 1, 1) + 0.3 * n(1, 8, 1) + n(1, 8, 20) + n(5, 8, 20))[:, None],
    "a single family": lambda n: (n(5, 1, 1) + 1.5 * n(5, 1, 20) + n(1, 1, 20))[:, None],
    "both groups of policies": lambda n: st.differences(*(n(5, 1, 1) + n(5, 4, 10) for _ in range(2))),
}
"""What varies about a true mean of 0, `[P, Q, F, S]`, by standard normal numbers."""


@pytest.mark.parametrize("null", NULLS)
def test_intervals_cover_the_truth(null: str) -> None:
    rng = np.random.default_rng(1)
    found = [st.interval(NULLS[null](lambda *shape: rng.standard_normal(shape)), resamples=200) for _ in range(REPEATS)]
    covered = np.mean([i.low <= 0 <= i.high for i in found])
    assert 0.90 <= covered <= 0.97, covered


def test_the_interval_is_students_t_if_only_policies_vary() -> None:
    effects = np.array([0.3, -1.0, 0.5, 2.0, 0.7])
    x = np.broadcast_to(effects[:, None, None, None], (5, 1, 3, 4))
    own = st.spread(x)
    assert own.error == pytest.approx(effects.std(ddof=1) / 5**0.5)
    assert own.freedom == pytest.approx(4)
    low, high = scipy_stats.t.interval(0.95, 4, effects.mean(), effects.std(ddof=1) / 5**0.5)
    found = st.interval(x, resamples=4000)
    assert found.mean == pytest.approx(effects.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.35)  # a percentile interval is not symmetric


def test_differences_pair_every_policy_with_every_other_or_with_its_own() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 2, 4)), rng.standard_normal((2, 2, 4))
    slow = [a[p, f, s] - b[q, f, s] for p, q, f, s in product(range(3), range(2), range(2), range(4))]
    assert st.differences(a, b).ravel() == pytest.approx(slow)
    own = [0.0 for _ in product(range(3), range(2), range(4))]
    assert st.differences(a, a, same_policies=True).ravel() == pytest.approx(own)


def test_fraction_of_a_gap_that_is_closed() -> None:
    rng = np.random.default_rng(7)
    gap = 4.0 + rng.standard_normal((1, 1, 6, 20))
    gained = 0.5 * gap + 0.2 * rng.standard_normal((5, 1, 6, 20))
    found = st.share(gained, gap, resamples=500)
    assert found.mean == pytest.approx(gained.mean() / gap.mean())
    assert found.low < 0.5 < found.high
    assert st.share(gained, -gap) is None
    assert st.share(gained, gap - 4.0) is None  # a gap that may be none


def test_intervals_need_finite_rows() -> None:
    with pytest.raises(ValueError, match="finite"):
        st.interval(np.full((1, 1, 2, 2), np.nan))
    with pytest.raises(ValueError, match="two rows"):
        st.interval(np.zeros((1, 1, 1, 1)))
