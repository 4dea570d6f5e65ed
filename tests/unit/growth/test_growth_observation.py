"""What the policy sees of a user's model: scores, losses, prices, and points of any metric; and rules by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from actors.blueprints.family import FAMILIES, ColumnBlueprint, register_blueprint
from actors.config import ConfigError
from actors.growth.columns.column import Column
from actors.growth.controller import GrowthController
from actors.growth.training.metric import MetricPoints
from actors.slots.stage import Stage
from tests.support.growth.columns import COLUMN, JOINED, count, run
from tests.support.growth.growing import Run, Script, germinate, mlp
from tests.unit.growth.test_decisions import feature


def beside(actions: list[Any], **options: Any) -> Run:
    return run("mlp", actions, count=1, slots=["1", "3"], **options)


def expected_scores(own: Run, rows: slice) -> list[float]:
    """Return the scores of one step on these rows, by autograd on the model as it is now."""
    outputs = []
    handles = [own.model[i].register_forward_hook(lambda m, a, out: outputs.append(out)) for i in (1, 3, 5)]
    loss = own.loss(rows)
    for handle in handles:
        handle.remove()
    host = [p for n, p in own.model.named_parameters() if "tamiyo" not in n]
    grads = torch.autograd.grad(loss, [*outputs, *host])
    norm = torch.cat([g.flatten() for g in grads[3:]]).norm()
    return [float(g.norm() / norm) for g in grads[:3]]


@pytest.mark.parametrize(("loss_scale", "minibatches"), [(1.0, 3), (1024.0, 3), (1.0, 2)])
def test_scores_are_of_the_last_minibatch_before_clipping_and_without_the_loss_scale(
    loss_scale: float, minibatches: int
) -> None:
    """An epoch that ends after two of three minibatches has the score of the middle one."""
    own = beside([]).epochs(1)  # how many minibatches an epoch has is known from the second on
    own.model.train()
    for start in range(0, 32 * minibatches, 32):
        own.optimizer.zero_grad()
        expected = expected_scores(own, slice(start, start + 32))
        (loss_scale * own.loss(slice(start, start + 32))).backward()
        for p in own.model.parameters():
            p.grad /= loss_scale
        nn.utils.clip_grad_norm_(own.model.parameters(), 1e-3)
        own.grower.shadow(lambda: own.loss(slice(0, 32)))
        own.optimizer.step()
    own.validate()
    own.grower.step(1.0)
    seen = own.grower.config.policy.seen[-1][0]
    for slot, score in enumerate(expected):
        assert feature(seen, "score", slot) == pytest.approx([1.0, math.log1p(score)], rel=1e-5)


def test_filled_slots_and_untrained_models_have_no_score() -> None:
    own = beside([germinate(0)])
    own.grower.step(*own.validate())
    own.epochs(1)
    known = [[feature(obs, "score", s)[0] for s in range(3)] for obs, _, _ in own.grower.config.policy.seen]
    assert known == [[0, 0, 0], [0, 1, 1]]


def test_looking_at_gradients_changes_none() -> None:
    own, alone = beside([]), Run(mlp(), Script([]), ["1"])
    alone.grower._seeds.slot_modules[0].recorder = None
    assert own.epochs(3).losses == alone.epochs(3).losses


def test_hooks_of_a_user_stay_and_no_others() -> None:
    own, calls = beside([]), list[float]()
    hooked, other = list(own.model.parameters())[:2]
    hooked.register_hook(lambda gradient: calls.append(float(gradient.norm())))  # type: ignore[no-untyped-call]
    own.epochs(2).train()  # three minibatches each, of which the last has just been scored
    assert len(calls) == 9
    assert other._backward_hooks is None


def test_training_loss_rows_and_price_are_seen() -> None:
    own = beside([], train_rows=96, points_per_doubling=4.0, points_per_compute_doubling=2.0)
    for train_loss in (None, 2.0, math.nan):
        own.train()
        own.grower.step(1.0, 0.5, train_loss)
    seen = own.grower.config.policy.seen
    assert feature(seen[1][0], "train_loss") == pytest.approx([math.log1p(2 / math.log(3)), 0, 0, 0])
    assert feature(seen[2][0], "train_loss_known") == [0, 1, 0, 0]
    assert feature(seen[0][0], "price") == [pytest.approx(2 / 8)]
    assert feature(seen[0][0], "compute_price") == pytest.approx([1, 1 / 8])
    assert [feature(seen[0][0], "kind", s) for s in range(3)] == [[1, 0], [1, 0], [0, 1]]
    costs = feature(seen[0][0], "costs", 2)
    half, quad = (count(mlp(width=w)) / count(mlp()) for w in (6, 48))
    expected = [1, *(math.log2(1 + more) / 4 for more in (half, quad, 19 / 20 * half, 19 / 20 * quad))]  # of 20 epochs
    assert costs == pytest.approx(expected, abs=1e-3)


def named(policy: str | None, epochs: int, **options: Any) -> GrowthController:
    return Run(mlp(), policy, **{"slots": [], "horizon_epochs": 12} | options).epochs(epochs).grower


def test_a_rule_by_name_grows_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = named("fixed-column:double@3", 10, columns=COLUMN)
    grown = [(d.op, d.blueprint) for d in fixed.log if d.op != "WAIT"]
    assert grown[:3] == [("GERMINATE", "column_double"), *[("ADVANCE", "column_double")] * 2]
    assert fixed.stages["column 1"] in (Stage.HOLDING, Stage.FOSSILIZED)
    monkeypatch.setenv("TAMIYO_POLICY", "never")
    assert all(d.op == "WAIT" for d in named(None, 6, columns=COLUMN).log)


def test_the_default_is_a_trial_of_columns_or_without_measurements_one_column_or_a_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TAMIYO_POLICY", raising=False)
    tried = named(None, 6, columns=COLUMN, evaluate=lambda: 0.5)
    assert [d.op for d in tried.log[:4]] == ["GERMINATE", "ADVANCE", "GERMINATE", "ADVANCE"]
    one = named(None, 6, columns=COLUMN)
    assert [d.op for d in one.log].count("GERMINATE") == 1
    assert [d.op for d in one.log[:4]] == ["WAIT"] * 3 + ["GERMINATE"]
    first = named(None, 3, slots=["1"]).log[0]
    assert (first.op, first.slot) == ("GERMINATE", "1")


def test_a_registered_column_blueprint_offers_its_scale() -> None:
    scales = []

    def factory(scale: float) -> nn.Module:
        scales.append(scale)
        return mlp(width=int(12 * scale))

    index = register_blueprint(image=ColumnBlueprint("column_triple", 3.0))
    try:
        own = Run(mlp(), Script([germinate(0, index)]), [], columns=Column(factory)).epochs(1)
        assert own.grower.log[0].blueprint == "column_triple"
        assert own.grower.added_parameters == count(mlp(width=36))
        assert {0.5, 1.0, 2.0, 3.0, 4.0} == set(scales)
    finally:
        for family in FAMILIES.values():
            family.blueprints.pop()
            family.columns.pop()


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
    seen = (grower.config.policy.seen for grower in (measured, told))
    assert all((ours[0] == theirs[0]).all() for ours, theirs in zip(*seen, strict=True))
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
