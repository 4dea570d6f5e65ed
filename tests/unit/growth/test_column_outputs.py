"""What a model may return, where its columns are added, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.growth.columns.grown_model import mixed
from actors.slots.stage import Stage
from tests.support.growth.columns import (
    JOINED,
    OwnLoss,
    ResNet,
    Wrapped,
    assert_equal_tensors,
    column_of,
    grow,
    logits_of,
    run,
)
from tests.support.growth.growing import Run, Script, mlp


def wrapped(kind: str, actions: list[Any], **column: Any) -> Run:
    """With a loop that reads the logits from what the model returns."""
    torch.manual_seed(0)
    columns = Column(lambda scale: Wrapped(kind, int(8 * scale)), **column)
    return Run(Wrapped(kind), Script(actions), [], columns=columns, call=lambda m, x: logits_of(m(x, scale=0.5)))


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "dict of one", "dataclass"])
def test_outputs_of_every_kind_can_grow(kind: str) -> None:
    own = wrapped(kind, JOINED).epochs(4)
    assert own.grower.stages["column 1"] is Stage.HOLDING
    assert own.losses == wrapped("tensor", JOINED).epochs(4).losses
    x = own.x_y[0]
    output = own.model(x)
    assert type(output) is type(Wrapped(kind)(x))
    if kind == "tuple":
        assert output[1] == "more"
    if kind in ("dict", "dataclass"):
        hidden = output["hidden"] if kind == "dict" else output.hidden
        assert torch.equal(hidden, own.model.body(x))


@pytest.mark.parametrize("kind", ["two", "tensor"])
def test_columns_can_be_mixed_within_the_model(kind: str) -> None:
    """At the head's output. A part of the model that is called alone is as before."""
    own = wrapped(kind, JOINED, output="head").epochs(4)
    column, x = column_of(own), own.x_y[0]
    parts = (model.head(model.body(x)) for model in (own.model, column))
    torch.testing.assert_close(logits_of(own.model(x, scale=2.0)), 2.0 * (0.5 * next(parts) + 0.5 * next(parts)))


def test_a_model_that_computes_its_own_loss_needs_the_name_of_its_head(caplog: pytest.LogCaptureFixture) -> None:
    def make(output: str) -> Run:
        columns = Column(lambda scale: OwnLoss(int(8 * scale)), output=output)
        own = Run(OwnLoss(8), Script(JOINED), [], columns=columns, loss_of=lambda m, x, y: m(x, labels=y)["loss"])
        return own.epochs(4)

    assert make("net").grower.stages["column 1"] is Stage.HOLDING
    assert not caplog.text
    assert make("").grower.stages["column 1"] is Stage.TRAINING  # what learns nothing is not joined
    assert "the loss does not depend on column 1: name the module" in caplog.text


class Pair(NamedTuple):
    name: str
    logits: Tensor


ONE, THREE, HALF, COUNT = torch.ones(2), 3 * torch.ones(2), torch.tensor(0.5), torch.tensor([4])


@pytest.mark.parametrize(
    ("given", "other", "expected"),
    [
        ([ONE, 3], [THREE, 3], [2]),
        ((None, ONE), (None, THREE), [2]),
        (Pair("a", ONE), Pair("a", THREE), [2]),
        # Beside logits, everything is the model's.
        ({"logits": ONE, "h": ONE}, {"logits": THREE, "h": THREE}, [2, 1]),
        # Further predictions are mixed, which the loss needs; its own loss, counts and what has another shape are not.
        ((ONE, ONE, ONE.sum(), COUNT, ONE), (THREE, 5 * ONE, THREE.sum(), 9 * COUNT, torch.ones(6)), [2, 3, 2, 4, 1]),
    ],
)
def test_types_of_outputs_are_kept_and_inputs_not_changed(given: Any, other: Any, expected: list[float]) -> None:
    before = copy.deepcopy(given)
    changed = mixed(given, other, HALF)
    assert type(changed) is type(given)
    values = changed.values() if isinstance(changed, dict) else changed
    assert [value.flatten()[0].item() for value in values if isinstance(value, Tensor)] == expected
    assert str(given) == str(before)


@pytest.mark.parametrize(("output", "kind"), [("text", "str"), (ONE.sum(), "one number")])
def test_outputs_that_cannot_be_mixed_are_refused(output: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=rf"returns {kind}, with which no column can be mixed.*Column\(output"):
        mixed(output, output, HALF)


def wide(scale: float) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, int(3 * scale)))


@pytest.mark.parametrize(
    ("kind", "factory", "says"),
    [
        ("tensor", wide, r"returns \(32, 1\) where the model returns \(32, 3\): the factory must not scale"),
        ("tensor", lambda s: Wrapped("dict", int(8 * s)), "returns dict where the model returns Tensor"),
        ("tensor", lambda s: nn.Bilinear(6, 6, 3), "column 1 cannot be called in the place of the model"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_when_it_first_runs(kind: str, factory: Any, says: str) -> None:
    own = Run(Wrapped(kind), Script([grow(size="half", target=0), *JOINED[1:]]), [], columns=Column(factory)).epochs(2)
    before = copy.deepcopy(own.model.state_dict())
    own.model.train()
    for _ in range(2):
        with pytest.raises(UserError, match=says) as refused:
            own.grower.shadow(lambda: own.loss(slice(0, 32)))
        assert "\n" not in str(refused.value)
    assert_equal_tensors(own.model.state_dict(), before)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("loss_kind", ["own", "rest"])
def test_a_model_that_changes_its_input_in_place_is_refused(loss_kind: Any) -> None:
    """A column would read what the model has left of it."""

    class Shifting(nn.Module):
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.net = mlp(width=width)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.sub_(0.5).mul_(2))

    own = Run(Shifting(), Script(JOINED), [], columns=Column(lambda s: Shifting(int(8 * s)), loss=loss_kind))
    own.x_y = own.x_y[0].clone(), own.x_y[1]
    own.epochs(2)
    with pytest.raises(UserError, match="the model changes its input in place, which its columns read as well"):
        own.train()


def test_the_grown_model_itself_can_be_copied_and_pickled(tmp_path: Path) -> None:
    own = run("resnet", JOINED).epochs(4)
    own.model.eval()
    torch.save(own.model, tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=False)
    assert isinstance(read, ResNet)
    assert torch.equal(read(own.x_y[0]), own.model(own.x_y[0]))
