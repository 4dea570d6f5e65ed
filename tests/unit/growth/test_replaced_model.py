"""A column that is fossilized at alpha 1.0 becomes the model: the host and what grew in it are gone."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.columns import MODELS, REPLACE, REPLACED, OwnLoss, column_of, count, grow, run
from tests.support.growth.growing import WAIT, Run, Script, advance, fossilize, germinate, mlp


@pytest.mark.parametrize("name", MODELS)
def test_the_model_becomes_the_column(name: str) -> None:
    make, _ = MODELS[name]
    own = run(name, REPLACE).epochs(3)
    host = [p for n, p in own.model.named_parameters() if "tamiyo" not in n]
    column, x = column_of(own), own.x_y[0]
    own.train()
    own.model.eval()
    before = own.model(x)
    assert torch.equal(before, column.eval()(x))  # alpha is 1
    own.grower.step(*own.validate())
    assert own.grower.stages["column 1"] is Stage.FOSSILIZED
    assert torch.equal(own.model(x), before)
    wide = make(2.0)
    assert {n: p.shape for n, p in own.model.named_parameters()} == {n: p.shape for n, p in wide.named_parameters()}
    assert own.grower.added_parameters == count(wide) - sum(p.numel() for p in host)
    assert all(not p.requires_grad and p.grad is None and p not in own.optimizer.state for p in host)
    values = [p.clone() for p in host]
    own.epochs(1)
    assert all(torch.equal(a, b) for a, b in zip(values, host, strict=True))  # no decay either
    assert not torch.equal(own.model.eval()(x), before)
    wide.load_state_dict(own.model.state_dict())
    exported = own.grower.export().eval()
    assert type(exported) is type(wide)
    assert exported.state_dict().keys() == wide.state_dict().keys()
    assert torch.equal(exported(x), wide.eval()(x))


def test_seeds_in_the_stream_go_with_the_host_and_columns_that_joined_later_stay() -> None:
    torch.manual_seed(0)
    script = [germinate(0), grow(1), grow(2, size="same", target=0), advance(0), advance(1), advance(2)]
    script += [advance(0), advance(1), advance(2), fossilize(0), fossilize(1)]
    own = run("mlp", script, slots=["3"]).epochs(10)
    first, second = column_of(own, 1), column_of(own, 2)
    assert len(own.optimizer.param_groups) == 4
    own.epochs(1)
    assert {k: s.name for k, s in own.grower.stages.items()} == {
        "3": "PRUNED", "column 1": "FOSSILIZED", "column 2": "HOLDING",
    }  # fmt: skip
    assert len(own.optimizer.param_groups) == 3
    x = own.x_y[0]
    expected = 0.5 * first(x) + 0.5 * second(x)
    torch.testing.assert_close(own.model(x), expected)
    exported = own.grower.export()
    torch.testing.assert_close(exported(x), expected)
    assert torch.equal(exported.host(x), first(x))
    assert count(own.model) == count(mlp()) + own.grower.added_parameters
    own.epochs(6)
    assert own.grower.stages["3"] is Stage.DORMANT
    assert not own.grower.config.policy.seen[-1][2].slot[1, 0]  # there is no stream in which a seed could grow


def test_a_second_column_replaces_the_first() -> None:
    torch.manual_seed(0)
    script = [*REPLACE, grow(1, size="quad"), advance(1), advance(1), WAIT, fossilize(1)]
    own = run("gru", script).epochs(9)
    assert {k: s.name for k, s in own.grower.stages.items()} == {"column 1": "PRUNED", "column 2": "FOSSILIZED"}
    quad = MODELS["gru"][0](4.0)
    quad.load_state_dict(own.model.state_dict())
    x = own.x_y[0]
    assert torch.equal(own.model(x), quad(x))
    assert own.grower.log[-1].doublings == pytest.approx(math.log2(count(quad) / count(MODELS["gru"][0](1.0))))
    assert len(own.optimizer.param_groups) == 2


def test_contributions_are_measured_of_what_can_be_switched_off() -> None:
    torch.manual_seed(0)
    evaluate = Mock(return_value=0.5)
    own = run("gru", REPLACED, evaluate=evaluate).epochs(8)
    evaluate.reset_mock()
    own.epochs(1)
    assert evaluate.call_count == 2, "with the second column and without; the model itself is always there"
    assert own.grower.log[-1].contributions[1] == 0.0


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("loss_kind", ["own", "rest"])
def test_a_part_of_a_model_is_replaced_only_as_far_as_the_column_learned(scaled: bool, loss_kind: Any) -> None:
    """What follows the named module, and has parameters, stays the host's: a column's were never trained."""
    torch.manual_seed(0)
    columns = Column(lambda s: OwnLoss(int(12 * s), scaled), output="net", loss=loss_kind)
    options: Any = {"columns": columns, "loss_of": lambda m, x, y: m(x, labels=y)["loss"]}
    own = Run(OwnLoss(12, scaled), Script(REPLACE), [], **options).epochs(3)
    own.train()
    own.model.eval()
    x = own.x_y[0]
    before = own.model(x)
    column = column_of(own)
    factor = 1.0 if own.model.scale is None else own.model.scale.detach()
    torch.testing.assert_close(before, factor * column.net(x))
    own.grower.step(*own.validate())
    assert own.grower.stages["column 1"] is Stage.FOSSILIZED
    assert torch.equal(own.model.eval()(x), before)
    assert torch.equal(own.grower.export().eval()(x), before)
    assert own.model.net[0].out_features == (12 if scaled else 24)
    own.epochs(2)
    if scaled:
        assert own.model.scale.item() != 1.5
