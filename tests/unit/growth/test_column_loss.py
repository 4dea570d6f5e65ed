"""What columns learn before they join: gradients against autograd by hand, the switch of `auto`, and isolation."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actors.growth.columns.column import Column
from actors.growth.training.column_loss import TrainLossMeter
from actors.slots.stage import Stage
from tests.support.growth.columns import MODELS, YOUNG, assert_left_alone, column_of, grow, run, shadow_gradients
from tests.support.growth.growing import Run, Script, advance, germinate, mlp


def young(loss_kind: Any, target: int, **column: Any) -> Run:
    """A column in TRAINING beside a model with a blended seed, which has learned for an epoch."""
    script = [germinate(0), grow(1, target=target), advance(0), advance(1), advance(0)]
    own = run("mlp", script, slots=["3"], loss=loss_kind, **column).epochs(6)
    assert own.grower.stages["column 1"] is Stage.TRAINING
    assert own.grower.stages["3"] is Stage.HOLDING
    own.train()
    return own


@pytest.mark.parametrize("output", ["", "5"])
@pytest.mark.parametrize(("loss_kind", "target"), [("own", 0), ("rest", 0), ("auto", 2)])
def test_the_loss_is_that_of_the_columns_own_output_or_of_the_average(loss_kind: str, output: str, target: int) -> None:
    """One that is to replace the model learns the task itself."""
    own, rows = young(loss_kind, target, output=output), slice(0, 32)
    x, y = own.x_y[0][rows], own.x_y[1][rows]
    column = column_of(own, 1)
    found = shadow_gradients(own, rows)
    own_loss = F.cross_entropy(column(x) if loss_kind != "rest" else 0.5 * own.model(x).detach() + 0.5 * column(x), y)
    expected = torch.autograd.grad(own_loss, list(column.parameters()))
    for parameter, gradient in zip(column.parameters(), expected, strict=True):
        torch.testing.assert_close(found[parameter], gradient)
    assert len(found) == len(expected)


def test_auto_learns_the_rest_until_the_model_overfits(caplog: pytest.LogCaptureFixture) -> None:
    """With losses that are given, from the epoch on in which their ratio is below 0.95, and for good."""
    caplog.set_level(logging.INFO)
    own = run("mlp", [grow(target=0), advance()])
    strengths = []
    for train_loss in (2.0, 2.0, 0.96, 0.94, 2.0, 0.5):
        own.train()
        own.grower.step(1.0, 0.5, train_loss)
        strengths.append(own.grower._growth.learning().get(0))
    assert strengths == [None, 0.5, 0.5, 1.0, 1.0, 1.0]
    said = [r.getMessage() for r in caplog.records if "learns the task itself" in r.getMessage()]
    assert said == [
        "epoch 4: the training loss is 0.94, the validation loss 1: column 1 learns the task itself from now on"
    ]


def test_the_training_loss_is_measured_without_effect_where_a_column_needs_it() -> None:
    """It is the mean of the model's losses on at most 8 minibatches; nothing is measured once it has switched."""

    class Counting(Run):
        asked = 0

        def loss(self, rows: slice) -> Tensor:
            self.asked += 1
            return super().loss(rows)

    def make(loss_kind: Any) -> Counting:
        torch.manual_seed(0)
        make, shape = MODELS["gru"]
        return Counting(make(1.0), Script([grow(target=0), advance()]), [], shape, columns=Column(make, loss=loss_kind))

    own, fixed = make("auto"), make("rest")
    for other in (own, fixed):
        other.epochs(3)
    measured = own.grower._train_losses[2]
    assert measured == pytest.approx(sum(own.losses[6:9]) / 3, rel=1e-5)  # before each step, as the loop's own
    assert own.losses == fixed.losses
    assert (own.asked, fixed.asked) == (9 + 3 + 3 + 2, 9 + 3 + 2)  # its FLOPs are counted in two passes
    own.train()
    own.grower.step(100.0, 0.5)
    own.asked = 0
    own.train()
    assert own.asked == 3 + 3  # it learns the task itself, and nothing is measured any more


@pytest.mark.parametrize(("steps", "expected"), [(3, 3), (8, 8), (20, 7), (1000, 8), (0, 8)])
def test_at_most_eight_minibatches_are_measured_and_spread_over_the_epoch(steps: int, expected: int) -> None:
    meter = TrainLossMeter()
    at = []
    for i in range(steps or 30):
        if meter.due(steps):
            meter.add(torch.tensor(float(i)))
            at.append(i)
    assert len(at) == expected
    assert max(at) >= 0.8 * (steps - 1) or not steps
    assert meter.take() == pytest.approx(sum(at) / len(at))
    assert meter.take() is None


def test_a_loss_scale_does_not_change_the_measured_training_loss() -> None:
    own = run("mlp", [grow(target=0), advance()]).epochs(2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    own.optimizer.zero_grad()
    loss = own.loss(slice(0, 32))
    scaler.scale(loss).backward()
    own.grower.shadow(lambda: scaler.scale(own.loss(slice(0, 32))))
    assert own.grower._column_loss.meter.take() == pytest.approx(loss.item())
    assert scaler.scale(torch.ones(())) == 2.0**16


class Stateful(nn.Module):
    """Keeps a state in every way that people do, and draws random numbers of all kinds."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.drop, self.calls, self.history = nn.Dropout(0.2), 0, [torch.zeros(3)]
        self.running, self.last = torch.zeros(3), None
        self.own, self.rng = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.register_buffer("seen", torch.zeros(()))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        noise = random.random() + np.random.rand() + self.rng.random() + torch.rand((), generator=self.own)  # noqa: NPY002
        out: Tensor = self.head(self.drop(torch.relu(self.norm(self.body(x))))) + 0.01 * noise
        out = out + 0.001 * self.calls + 0.1 * self.running + 0.1 * self.history[0]
        self.running += out.detach().mean(0)
        self.history[0] += 1e-3 * out.detach().mean(0)
        if self.last is not None:
            out = out + 0.01 * self.last
        self.last = out.detach().mean(0)
        return out


@pytest.mark.parametrize("loss_kind", ["own", "auto"])
def test_whatever_a_model_carries_is_as_if_no_column_learned(loss_kind: Any) -> None:
    def train(actions: list[Any]) -> Run:
        torch.manual_seed(0)
        model = Stateful()
        torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
        return Run(model, Script(actions), [], columns=Column(lambda s: Stateful(int(8 * s)), loss=loss_kind)).epochs(4)

    alone, own = train([]), train([grow(), advance()])
    assert own.grower.stages["column 1"] is Stage.TRAINING
    assert_left_alone(own, alone)
    assert own.model.calls == alone.model.calls
    assert own.grower.log[-1].gradient_health[0] == 1.0


@pytest.mark.parametrize(("name", "loss_kind"), [*((name, "rest") for name in MODELS), ("resnet", "own")])
def test_a_column_in_training_leaves_its_host_unchanged(name: str, loss_kind: str) -> None:
    """Bit for bit, including dropout's random numbers and BatchNorm's running statistics; the column's own move."""
    alone = run(name, []).epochs(4)
    own = run(name, YOUNG, loss=loss_kind).epochs(2)
    before = {n: t.clone() for n, t in column_of(own).state_dict().items()}
    own.epochs(2)
    assert_left_alone(own, alone)
    after = column_of(own).state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert moved >= {name for name in before if "running" in name}
    assert all(after[name] - before[name] == 6 for name in before if "tracked" in name)  # once for each minibatch
    assert own.grower.log[-1].gradient_health[0] == 1.0


BOUNDED: dict[str, tuple[Any, Any]] = {
    "sigmoid, BCELoss": (nn.Sigmoid, lambda out, y: nn.BCELoss()(out, F.one_hot(y, 3).float())),
    "log_softmax, NLLLoss": (lambda: nn.LogSoftmax(1), F.nll_loss),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_losses_whose_input_has_a_range_stay_finite_and_fall(name: str) -> None:
    last, loss_of = BOUNDED[name]
    torch.manual_seed(0)
    columns = Column(lambda s: nn.Sequential(*mlp(width=int(12 * s)), last()))
    script = [grow(target=0), advance(), advance(), grow(1, target=0), advance(1), advance(1)]
    own = Run(
        nn.Sequential(*mlp(), last()), Script(script), [], columns=columns, loss_of=lambda m, x, y: loss_of(m(x), y)
    ).epochs(10)
    assert [s.name for s in own.grower.stages.values()] == ["HOLDING", "HOLDING"]
    assert all(np.isfinite(own.losses))
    assert min(own.losses) >= 0  # a sum would not keep it bounded
    assert sum(own.losses[-3:]) < sum(own.losses[:3])
