"""Metrics other than accuracy: points, and rules that grow a regression or a language model where it pays."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actors.config import ConfigError
from actors.growth.columns.column import Column
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


class Language:
    """Text in which two letters tell the next, or nothing does."""

    def __init__(self, pays: bool) -> None:
        rng = torch.Generator().manual_seed(0)
        table = torch.randint(8, (8, 8), generator=rng)
        text = [0, 1]
        for chance in torch.rand(1600, generator=rng):
            letter = torch.randint(8, (), generator=rng)
            text.append(int(table[text[-2], text[-1]] if pays and chance < 0.9 else letter))
        letters = torch.tensor(text)
        self.x, self.y = F.one_hot(letters.unfold(0, 3, 1)[:, :2], 8).flatten(1).float(), letters[2:]

    def network(self, scale: float) -> nn.Module:
        return nn.Sequential(nn.Linear(16, int(4 * scale)), nn.ReLU(), nn.Linear(int(4 * scale), 8))

    def loss(self, model: nn.Module, rows: Any) -> Tensor:
        return F.cross_entropy(model(self.x[rows]), self.y[rows])


@pytest.mark.parametrize("pays", [True, False], ids=["where it pays", "where it does not"])
def test_a_rule_grows_where_it_pays_and_nowhere_else(pays: bool) -> None:
    """With prices in points of the perplexity. The rule keeps what contributes its price, which `evaluate` measures."""
    torch.manual_seed(0)
    task = Language(pays)
    train, valid = slice(0, 2 * len(task.x) // 3), slice(2 * len(task.x) // 3, None)
    model = task.network(1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02 if pays else 0.002)  # noise is not to be learned by heart

    @torch.no_grad()
    def evaluate() -> float:
        return math.exp(task.loss(model, valid))

    grower = GrowthController(
        model, [], optimizer, columns=Column(task.network), horizon_epochs=24, policy="gap:size=quad",
        evaluate=evaluate, higher_is_better=False, best_metric=1.0, points_per_doubling=1.0,
    )  # fmt: skip
    for epoch in range(25):
        losses = []
        for rows in torch.randperm(train.stop).split(16) if epoch else ():
            optimizer.zero_grad()
            loss = task.loss(model, rows)
            loss.backward()
            grower.shadow(lambda rows=rows: task.loss(model, rows))
            optimizer.step()
            losses.append(loss.item())
        found = evaluate()
        grower.step(math.log(found), None, sum(losses) / len(losses) if losses else None, found)
    kept = [d.slot for d in grower.log if d.op == "FOSSILIZE"]
    assert bool(kept) == pays, [(d.epoch, d.op, d.accuracy, d.contributions) for d in grower.log]
    assert pays or any(d.op == "PRUNE" for d in grower.log)
