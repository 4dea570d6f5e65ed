"""The tables of an evaluation, compared with slow loops over the rows."""

from __future__ import annotations

from itertools import product

import pytest

from deploy.evaluation.page import ops_table
from deploy.evaluation.players import BEST, BLIND, BUILT, NEVER, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, WIDTHS_OF_SWEEP, Results, equal_compute, results_by_condition, sweep
from deploy.evaluation.suite import CONDITIONS, FREE, PRICED, PRICES
from tests.support.made_up_rows import Rows, made_up_rows

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
    assert results.against(POLICY, BLIND).shape == (3, 3, 3, 4)
    assert results.against(POLICY, EQUAL).shape == (3, 1, 3, 4)
    assert results.against(EQUAL, NEVER).shape == (3, 1, 3, 4)


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
    assert family.family == "b"
    assert family.bare == 0.5
    assert family.policy_over_best.mean == pytest.approx(results.against(POLICY, BEST)[:, :, 1].mean())


def test_rules_alone_have_a_table(rows: Rows) -> None:
    alone = results_by_condition({name: own for name, own in rows.items() if name not in (POLICY, BLIND)})[FREE]
    assert EQUAL not in alone.episodes
    assert SWEEP in alone.episodes
    assert all(line.policy_over is None for line in alone.lines)
    assert alone.family_lines[0].bare is None
