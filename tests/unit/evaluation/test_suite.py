"""The suites, what they may not have in common with training, and the rules that are tuned on one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.env.tasks import families
from actors.env.tasks.measured import measurements
from actors.errors import UserError
from actors.rules.names import parse_rule
from deploy.config.schema import RESEARCH_TASKS
from deploy.evaluation import suite, tune
from deploy.evaluation.players import BEST, FIXED, GAP, TRIAL, always_played
from deploy.evaluation.suite import ALL_PRICES, CONDITIONS, FREE, PRICED
from tests.support.made_up_rows import grown_row


def test_held_out_families_are_disjoint_from_training_ones() -> None:
    training = {f.name for f in families("train")}
    held_out = suite.members("heldout")
    assert not training & set(held_out)
    others = suite.members("mlbench")
    assert {*held_out, *others} == {f.name for f in families("heldout") if f.factory}
    assert set(others) - set(held_out) == set(suite.TRIVIAL)
    assert all(measurements()[name][0].never > 99 for name in suite.TRIVIAL)
    assert set(RESEARCH_TASKS) <= training
    assert suite.REPORTING != suite.TUNING
    assert [suite.run_seed(name) for name in suite.SUITES] == [suite.REPORTING, suite.REPORTING, suite.TUNING]


def test_families_with_mlps_that_count_are_reported() -> None:
    found = suite.reported("heldout")
    assert len(found) == 17
    assert not {"wave_forms", "gratings", "diabetes"} & set(found)
    assert set(suite.reported("train")) == set(RESEARCH_TASKS)
    assert suite.reported("heldout", ["gratings"]) == ("gratings",)  # what is named is played
    with pytest.raises(UserError, match="choose from"):
        suite.reported("heldout", ["spirals"])


def test_the_rules_of_the_package_are_complete() -> None:
    rules = tune.read_rules(tune.RULES_FILE)
    assert set(rules) == {BEST, TRIAL, FIXED, GAP}
    lines = always_played(rules)
    assert all(set(players) == set(ALL_PRICES) for players in lines.values())
    for line, candidates in tune.CANDIDATES.items():
        assert len({parse_rule(rule) for rule in candidates}) == len(candidates) >= 6
        assert set(rules[line].values()) <= set(candidates)


def test_a_file_of_rules_is_read_as_written(tmp_path: Path) -> None:
    rules = {FIXED: dict.fromkeys(ALL_PRICES, "fixed-column:same@3"), GAP: dict.fromkeys(ALL_PRICES, "gap")}
    rules[GAP][CONDITIONS[PRICED][0]] = "never"
    tune.write_rules(rules, tmp_path / "own" / "rules.yaml")
    assert tune.read_rules(tmp_path / "own" / "rules.yaml") == rules


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gap rule: {c = 0: {0.5: gap, 1: gap, 2: gap}}", "each of the prices 0.5, 1, 2, 4 under c = 0 and c = p/4"),
        ("gap rule: gap", "each of the prices"),
        ("[1, 2]", "each of the prices"),
        ("gap rule: {c = 0: &x {0.5: gap, 1: gap, 2: gap, 4: gasp}, c = p/4: *x}", "'gasp' is not a rule"),
        ("gap rule: {", "while parsing a flow"),
    ],
)
def test_an_invalid_file_of_rules_is_reported_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(UserError, match=reason) as found:
        tune.read_rules(tmp_path / "rules.yaml")
    assert "\n" not in str(found.value)


def test_the_best_rule_of_each_price_is_chosen() -> None:
    """Families count equally: the first has many more episodes."""
    rows = {
        rule: {w: {"a": [grown_row(g, d, compute=c)] * 9, "b": [grown_row(3 * g, d, compute=c)]} for w in ALL_PRICES}
        for rule, g, d, c in (("large", 6.0, 4.0, 8.0), ("small", 2.0, 1.5, 0.5), ("none", 0.0, 0.0, 0.0))
    }
    found = tune.choose(rows)
    assert [found[w] for w in CONDITIONS[FREE]] == ["large", "large", "large", "none"]
    assert [found[w] for w in CONDITIONS[PRICED]] == ["large", "large", "small", "none"]
