"""The suites: what an evaluation reports, and what it may not have in common with training."""

from __future__ import annotations

import pytest

from actors.env.tasks import families
from actors.env.tasks.measured import measurements
from actors.errors import UserError
from deploy.config.schema import RESEARCH_TASKS
from deploy.evaluation import suite


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
