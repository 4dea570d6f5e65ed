"""The training compute of a user's model: FLOPs are counted without effect on training, and C is what has run."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from actors.growth.columns.column import Column
from actors.growth.flop_count import FlopCount
from tests.support.growth.columns import JOINED, MODELS, REPLACE, assert_equal_tensors, grow, run
from tests.support.growth.growing import GROWN, WAIT, ConvNet, Run, Script, advance, germinate, mlp, prune

HORIZON, MINIBATCHES = 8, 3


def convolutions(width: int) -> int:
    """FLOPs of a `ResNet` of the tests for one image of 5 x 5, by hand."""
    return 2 * (25 * 9 * width + 25 * 9 * width * width + 3 * width)


class Counting(nn.Module):
    """Two matrices, and a tally of the FLOPs of all forward passes, thrice those in which it learns."""

    spent = 0.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        learns = self.training and torch.is_grad_enabled()
        Counting.spent += (3 if learns else 1) * self.flops(len(x))
        return self.b(torch.relu(self.a(x)))

    def flops(self, rows: int) -> float:
        return 2.0 * rows * 9 * self.a.out_features


@pytest.mark.parametrize(
    "make",
    [
        *(lambda name=name, loss=loss: run(name, JOINED, loss=loss) for name in MODELS for loss in ("own", "auto")),
        lambda: Run(ConvNet(), Script([*GROWN, germinate(1, 2), WAIT, advance(1)]), ["stem", "block"], (1, 5, 4)),
    ],
)
def test_counting_does_not_change_training(make: Callable[[], Run], monkeypatch: pytest.MonkeyPatch) -> None:
    counted = make().epochs(5)
    assert any(flops is not None for flops in counted.grower._flops.counted.seeds[0])
    after = torch.rand(4)
    monkeypatch.setattr(FlopCount, "_count", lambda *_: 1.0)
    plain = make().epochs(5)
    assert torch.equal(torch.rand(4), after)
    assert plain.losses == counted.losses
    assert_equal_tensors(counted.model.state_dict(), plain.model.state_dict())


def test_columns_are_counted_in_multiples_of_the_model() -> None:
    own = run("resnet", [grow(), grow(1, size="half"), advance(), advance(1)]).epochs(5)
    growth = own.grower._growth
    column = growth.slot_shapes[0]
    assert growth.slot_shapes[1].flops == column.flops
    ratios = {c: f / growth.host_flops for c, f in zip(column.costs, column.flops, strict=True) if c is not None}
    sizes = {c: round(log2(c / growth.host_params)) for c in ratios}  # a little off 4 times per doubling of the width
    found = {size: ratios[c] for c, size in sizes.items()}
    for scale, size in ((2, 2), (0.5, -2)):
        assert found[size] == pytest.approx(convolutions(int(4 * scale)) / convolutions(4), rel=1e-12)
    uncounted = next(c for c, size in sizes.items() if size == 4)
    assert ratios[uncounted] == uncounted / growth.host_params  # parameters stand in


TRIAL = [grow(target=0), grow(1, size="quad"), advance(), advance(1), advance(), prune(1)]
ADDED = [*REPLACE, grow(1, size="same", target=0), advance(1), advance(1)]


@pytest.mark.parametrize(
    ("actions", "loss", "rows", "widths"),
    [
        (TRIAL, "own", {}, 2 + 4),
        (TRIAL, "rest", {"train_rows": 96, "val_rows": 96}, 2 + 4),
        (TRIAL, "auto", {"train_rows": 96, "val_rows": 96}, 2 + 4),
        (ADDED, "own", {}, 2 + 1),
    ],
)
def test_compute_is_what_has_run(actions: list[Any], loss: str, rows: dict[str, int], widths: int) -> None:
    """Against a tally that the networks themselves keep: of two columns one joins and the other is pruned, or one
    replaces the model and the other joins."""
    measured = {"evaluate": lambda: own.validate()[1]} if actions is TRIAL else {}
    torch.manual_seed(0)
    columns = Column(lambda scale: Counting(int(16 * scale)), loss=loss)
    options: dict[str, Any] = {"columns": columns, "horizon_epochs": HORIZON, **rows, **measured}
    own = Run(Counting(16), Script(actions), [], **options)
    host = own.model.flops(96)
    Counting.spent, validations = 0.0, 0.0
    for _ in range(HORIZON):
        own.train()
        before = Counting.spent
        values = own.validate()
        validations += Counting.spent - before
        own.grower.step(*values)
    assert own.grower.log[-1].stages == ["HOLDING", "EMBARGOED"] if actions is TRIAL else ["FOSSILIZED", "HOLDING"]
    expected = (Counting.spent - validations) / (3 * HORIZON * host)
    # The one pass of each column by which it was counted is not part of it.
    expected -= widths / MINIBATCHES / (3 * HORIZON)
    assert own.grower.log[-1].compute_doublings == pytest.approx(log2(expected), abs=1e-9)


def test_seeds_in_the_stream_are_counted() -> None:
    own = Run(mlp(), Script([germinate(0, 3), advance()]), ["3"]).epochs(3)
    shape, growth = own.grower._growth.slot_shapes[0], own.grower._growth
    host, seed = 6 * 12 + 12 * 12 + 12 * 3, 2 * 12 * 12  # elements of their matrices
    assert shape.flops[3] == pytest.approx(growth.host_params * seed / host, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "found", "told"),
    [
        ("gru", None, "does not know recurrent layers"),
        ("mlp", Mock(side_effect=RuntimeError("no such\nformula")), "no such formula"),
        ("mlp", Mock(return_value=(0, 0)), "finds none"),
    ],
)
def test_parameters_stand_in_where_nothing_can_be_counted(
    name: str, found: Any, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if found:
        monkeypatch.setattr(FlopCount, "_pass", found)
    own = run(name, [grow(), grow(1, size="same"), advance(), advance(1)]).epochs(5)
    shape = own.grower._growth.slot_shapes[0]
    assert shape.flops == shape.costs
    (line,) = [r.getMessage() for r in caplog.records if "FLOPs" in r.getMessage()]
    assert told in line
