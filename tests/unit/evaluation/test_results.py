"""The tables of an evaluation, compared with slow loops over the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.evaluation.players import BEST, BLIND, BUILT, NEVER, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, Results, equal_compute, with_sweeps
from deploy.evaluation.suite import PRICES
from tests.support.made_up_rows import Rows, made_up_rows

FAMILIES = ("a", "b", "c")


@pytest.fixture(scope="module")
def rows() -> Rows:
    return made_up_rows(FAMILIES, seeds=4, policies=3, noise=1.0)


@pytest.fixture(scope="module")
def results(rows: Rows) -> Results:
    return Results(with_sweeps(rows), resamples=100)


def test_the_headline_figure_is_the_mean_over_prices_paired_by_episode(rows: Rows, results: Results) -> None:
    found = results.against(POLICY, BEST)
    assert found.shape == (3, 1, 3, 4)
    for p in range(3):
        for f, family in enumerate(FAMILIES):
            for s in range(4):
                total = 0.0
                for w in PRICES:
                    mine, other = rows[POLICY][w][p][family][s], rows[BEST][w][0][family][s]
                    total += (mine.gain - w * mine.rent) - (other.gain - w * other.rent)
                assert found[p, 0, f, s] == pytest.approx(total / 4)
    line = next(line for line in results.lines if line.name == BEST)
    assert line.policy_over is not None
    assert line.policy_over.mean == pytest.approx(found.mean())
    assert line.policy_over.low < found.mean() < line.policy_over.high
    assert line.improvement is not None
    assert line.improvement.mean == pytest.approx((found > 0).mean())


def test_policies_are_compared_with_every_other_but_with_their_own_sweep(results: Results) -> None:
    assert results.against(POLICY, BLIND).shape == (3, 3, 3, 4)
    assert results.against(POLICY, EQUAL).shape == (3, 1, 3, 4)
    assert results.against(EQUAL, NEVER).shape == (3, 1, 3, 4)


def test_the_sweeps_follow_from_the_built_hosts(rows: Rows, results: Results) -> None:
    for w in PRICES:
        for family in FAMILIES:
            for s in range(4):
                built = [rows[name][w][0][family][s] for name in (NEVER, *(BUILT.format(k) for k in (2, 4, 8)))]
                best = results.rows[SWEEP][w][0][family][s]
                assert best.objective(w) == max(row.objective(w) for row in built)
                for p, policy in enumerate(rows[POLICY][w]):
                    wanted = equal_compute(built, w, policy[family][s].training_flops)
                    found = results.rows[EQUAL][w][p][family][s]
                    assert replace(found, test_accuracy=0.0) == replace(wanted, test_accuracy=0.0)


def test_lines_show_each_price_and_relative_costs(rows: Rows, results: Results) -> None:
    by_name = {line.name: line for line in results.lines}
    never = by_name[NEVER]
    assert (never.training_flops, never.doublings, set(never.by_price.values())) == (1.0, 0.0, {0.0})
    assert never.over_never is None
    wide = by_name[BUILT.format(4)]
    assert wide.training_flops == pytest.approx(16.0)
    assert wide.doublings == 4.0
    assert wide.by_price == pytest.approx({w: 5 - 4 * w for w in PRICES})  # ten points in half of the episodes
    assert by_name[POLICY].training_flops == pytest.approx(2**0.5)  # in half of the episodes twice as many
    assert by_name[SWEEP].training_flops == pytest.approx(85.0)
    assert by_name[EQUAL].test_accuracy is None  # it was not read where training stopped early
    assert by_name[POLICY].policies == 3


def test_families(results: Results) -> None:
    family = results.family_lines[1]
    assert family.family == "b"
    assert family.bare == 0.5
    assert family.policy_over_best is not None
    assert family.policy_over_best.mean == pytest.approx(results.against(POLICY, BEST, ["b"]).mean())


def test_rules_alone_have_a_table(rows: Rows) -> None:
    alone = Results(with_sweeps({name: own for name, own in rows.items() if name not in (POLICY, BLIND)}))
    assert EQUAL not in alone.rows
    assert SWEEP in alone.rows
    assert all(line.policy_over is None for line in alone.lines)
    assert alone.family_lines[0].bare is None
