"""What a model may return, where its columns are added, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.growth.columns.grown_model import mixed, tensors_of
from actors.slots.stage import Stage
from tests.support.growth.columns import JOINED, OwnLoss, ResNet, Wrapped, grow, logits_of, run
from tests.support.growth.growing import Run, Script, mlp


def wrapped(kind: str, actions: list[Any], **column: Any) -> Run:
    """With a loop that reads the logits from what the model returns."""
    torch.manual_seed(0)
    columns = Column(lambda scale: Wrapped(kind, int(8 * scale)), **column)
    return Run(Wrapped(kind), Script(actions), [], columns=columns, call=lambda m, x: logits_of(m(x, scale=0.5)))


KINDS = ["tensor", "tuple", "dict", "dict of one", "dataclass"]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_every_kind_can_grow(kind: str) -> None:
    own = wrapped(kind, JOINED).epochs(4)
    assert own.grower.stages["column 1"] is Stage.HOLDING
    plain = wrapped("tensor", JOINED).epochs(4)
    assert own.losses == plain.losses, "only the wrapping differs"
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
    """At the head's output."""
    own = wrapped(kind, [*JOINED], output="head").epochs(4)
    assert own.grower.stages["column 1"] is Stage.HOLDING
    column = own.grower._seeds.slot_modules[0].seed
    x = own.x_y[0]
    with own.grower._seeds.activated({}):
        alone = own.model.head(own.model.body(x))
    expected = 2.0 * (0.5 * alone + 0.5 * column.head(column.body(x)))
    torch.testing.assert_close(logits_of(own.model(x, scale=2.0)), expected)
    assert torch.equal(own.model.head(own.model.body(x)), alone), (
        "a part of the model that is called alone is as before"
    )


def test_a_model_that_computes_its_own_loss_needs_the_name_of_its_head(caplog: pytest.LogCaptureFixture) -> None:
    def make(output: str) -> Run:
        columns = Column(lambda scale: OwnLoss(int(8 * scale)), output=output)
        own = Run(OwnLoss(8), Script(JOINED), [], columns=columns, loss_of=lambda m, x, y: m(x, labels=y)["loss"])
        return own.epochs(4)

    assert make("net").grower.stages["column 1"] is Stage.HOLDING
    assert not caplog.text
    own = make("")
    assert own.grower.stages["column 1"] is Stage.TRAINING, "what learns nothing is not joined"
    assert "the loss does not depend on column 1: name the module" in caplog.text


class Pair(NamedTuple):
    name: str
    logits: Tensor


def test_types_of_outputs_are_kept_and_inputs_not_changed() -> None:
    one, three, half = torch.ones(2), 3 * torch.ones(2), torch.tensor(0.5)
    cases: list[tuple[Any, Any, Any]] = [
        (0, [one, 3], [three, 3]),
        (1, (None, one), (None, three)),
        ("logits", Pair("a", one), Pair("a", three)),
        ("logits", {"logits": one, "h": one}, {"logits": three, "h": three}),
    ]
    for at, given, other in cases:
        changed = mixed(given, other, half)
        assert type(changed) is type(given)
        assert torch.equal(tensors_of(changed)[at], 2 * one)
        assert torch.equal(tensors_of(given)[at], one)
        if isinstance(given, dict):
            assert changed["h"] is one, "beside logits, everything is the model's"
    assert tensors_of("text") == tensors_of(None) == {}
    with pytest.raises(ValueError, match=r"returns str, with which no column can be mixed.*Column\(output"):
        mixed("text", one, half)
    with pytest.raises(ValueError, match=r"returns one number, with which no column can be mixed.*Column\(output"):
        mixed(one.sum(), three.sum(), half)


def test_auxiliary_heads_are_mixed_and_single_numbers_are_not() -> None:
    """A tuple may hold further predictions, which the loss needs, and its own loss, which is none."""
    x, loss, lengths = torch.ones(4, 3), torch.tensor(1.0), torch.tensor([4])
    out = mixed(
        (x, x, loss, lengths, torch.ones(5)), (3 * x, 5 * x, 9 * loss, 9 * lengths, torch.ones(6)), torch.tensor(0.5)
    )
    assert [t.flatten()[0].item() for t in out] == [2, 3, 1, 4, 1]
    assert len(out[4]) == 5


def wide(scale: float) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, int(3 * scale)))


class Deaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self) -> Tensor:
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "factory", "says"),
    [
        ("tensor", wide, r"returns \(32, 1\) where the model returns \(32, 3\): the factory must not scale"),
        ("tensor", lambda s: Wrapped("dict", int(8 * s)), "returns dict where the model returns Tensor"),
        ("tensor", lambda s: Deaf(), "column 1 cannot be called in the place of the model"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_when_it_first_runs(kind: str, factory: Any, says: str) -> None:
    own = Run(Wrapped(kind), Script([grow(size="half", target=0), *JOINED[1:]]), [], columns=Column(factory)).epochs(2)
    before = {n: t.clone() for n, t in own.model.state_dict().items()}
    own.model.train()
    for _ in range(2):
        with pytest.raises(UserError, match=says) as refused:
            own.grower.shadow(lambda: own.loss(slice(0, 32)))
        assert "\n" not in str(refused.value)
    assert all(torch.equal(before[n], t) for n, t in own.model.state_dict().items())
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
