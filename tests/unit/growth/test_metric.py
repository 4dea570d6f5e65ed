"""Metrics other than accuracy: points, which policies see as accuracy, and contributions in points."""

from __future__ import annotations

import math
from typing import Any

import pytest

from actors.config import ConfigError
from actors.growth.controller import GrowthController
from actors.growth.training.metric import MetricPoints
from tests.support.growth.columns import JOINED, run


@pytest.mark.parametrize(
    ("higher", "best", "values", "points"),
    [
        (None, 1.0, [0.25, 0.5, 1.0, math.nan, None], [25.0, 50.0, 100.0, None, None]),
        (True, 1.0, [math.nan, -1.0, 0.0, 0.5, 1.0, -3.0], [None, 0.0, 50.0, 75.0, 100.0, 0.0]),  # R2
        (True, 100.0, [20.0, 60.0], [0.0, 50.0]),  # BLEU
        (False, 0.0, [4.0, 3.0, 1.0, 5.0], [0.0, 25.0, 75.0, 0.0]),  # a loss
        (False, 1.0, [9.0, 5.0, 1.0], [0.0, 50.0, 100.0]),  # perplexity
        (False, 0.0, [0.0, 0.0, 1.0], [100.0, 100.0, 0.0]),  # nothing was left
    ],
)
def test_points_are_shares_of_what_was_left(
    higher: bool | None, best: float, values: list[float | None], points: list[float | None]
) -> None:
    metric = MetricPoints(higher, best)
    assert [metric.points(value) for value in values] == points


def start(**options: Any) -> GrowthController:
    return run("mlp", [], horizon_epochs=9, num_classes=None, **options).grower


def test_what_was_measured_must_be_named() -> None:
    with pytest.raises(ConfigError, match="set higher_is_better when you create the controller"):
        start().step(1.0, metric=0.3)
    with pytest.raises(ConfigError, match=r"give metric=\.\.\. instead"):
        start(higher_is_better=True).step(1.0, 0.3)
    with pytest.raises(ConfigError, match=r"27\.3, better than the best possible value 1: set best_metric"):
        start(higher_is_better=True).step(1.0, metric=27.3)


def test_policies_see_points_as_accuracy() -> None:
    """A loss alone counts where lower is better; a resumed run measures from where the first one began."""
    measured = start(higher_is_better=False)
    log = [measured.step(loss) for loss in (4.0, 3.0, 1.0)]
    assert [d.accuracy for d in log] == [0.0, 25.0, 75.0]
    told = start()
    for loss, share in ((4.0, 0.0), (3.0, 0.25), (1.0, 0.75)):
        told.step(loss, share)
    pairs = zip(measured.config.policy.seen, told.config.policy.seen, strict=True)
    assert all((ours[0] == theirs[0]).all() for ours, theirs in pairs)
    resumed = start(higher_is_better=False)
    resumed.load_state_dict(measured.state_dict())
    assert resumed.step(2.0).accuracy == 50.0


def test_contributions_are_points_of_the_metric() -> None:
    values: list[float] = []

    def evaluate() -> float:
        values.append(own.validate()[0])
        return values[-1]

    own = run("mlp", JOINED, evaluate=evaluate, higher_is_better=False)
    first = own.validate()[0]
    own.grower.step(first)
    for _ in range(6):
        own.train()
        own.grower.step(own.validate()[0])
    found = own.grower.log[-1].contributions[0]
    without, with_column = sorted(values[-2:], reverse=True)
    assert abs(found) == pytest.approx(100.0 * (without - with_column) / first, abs=1e-3)
