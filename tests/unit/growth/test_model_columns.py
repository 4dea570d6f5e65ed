"""Columns beside a user's model: starts, mixes, isolation, optimizer groups; and one that becomes the model."""

from __future__ import annotations

import math
import random
from math import log2
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from actors.growth.columns.column import Column, own_random_numbers
from actors.growth.columns.grown_model import mixed
from actors.rng import Purpose, stream
from actors.slots.stage import Stage
from tests.support.growth.columns import MODELS, REPLACE, REPLACED, OwnLoss, column_of, count, grow, grown, run
from tests.support.growth.growing import WAIT, Run, Script, advance, fossilize, germinate, mlp, prune


@pytest.mark.parametrize("name", MODELS)
def test_a_column_is_what_the_factory_makes_and_germinates_without_effect(name: str) -> None:
    """Its architecture's own initialization stays."""
    own = run(name, [grow()]).epochs(1)
    x = own.x_y[0]
    own.model.eval()
    alone = own.model(x)
    with own.grower._seeds.activated({0: 0.0}):
        assert torch.equal(own.model(x), alone)
    with own.grower._seeds.activated({0: 1.0}):
        assert torch.equal(own.model(x), column_of(own).eval()(x))
    make = MODELS[name][0]
    with own_random_numbers(int(stream(0, 0, Purpose.SEED_INIT, 0).integers(2**31))):
        made = make(2.0)
    assert all(torch.equal(p, q) for p, q in zip(made.parameters(), column_of(own).parameters(), strict=True))
    assert own.grower.added_parameters == count(made)


def test_columns_are_mixed_one_after_the_other_in_the_order_in_which_they_joined() -> None:
    """Against the formula, written out, while alpha rises: the second slot joins first."""
    script = [grow(0, size="half", target=1), grow(1, speed=1, target=0), *map(advance, (0, 1, 1, 0)), WAIT, WAIT]
    own = run("mlp", script).epochs(5)
    x = own.x_y[0]
    seen = set()
    for _ in range(3):
        own.epochs(1)
        with own.grower._seeds.activated({}):
            expected = own.model(x)
        alphas = own.grower.log[-1].alphas
        seen.add(alphas[1])
        for index in (1, 0):
            expected = (1 - alphas[index]) * expected + alphas[index] * column_of(own, index)(x)
        torch.testing.assert_close(own.model(x), expected)
        exported = own.grower.export()
        assert torch.equal(exported(x), own.model(x))
        assert torch.equal(exported.column_1(x), column_of(own, 1)(x))
    assert len(seen) > 1


def test_infinite_outputs_stay_what_they_are() -> None:
    """Masked classes have a logit of minus infinity, in the model and in the column."""
    z, c = torch.tensor([[1.0, -torch.inf]], requires_grad=True), torch.tensor([[3.0, -torch.inf]], requires_grad=True)
    for alpha, expected in ((0.0, 1.0), (0.5, 2.0), (1.0, 3.0)):
        out = mixed(z, c, torch.tensor(alpha))
        assert out.tolist() == [[expected, -torch.inf]]
        gradients = torch.autograd.grad(out.softmax(1)[0, 0] * 2 + out[0, 0], (z, c))
        assert [g[0, 0].item() for g in gradients] == [1 - alpha, alpha]


def test_stages_and_alpha() -> None:
    own = run("gru", [grow(speed=1, target=1), advance(), advance(), WAIT, WAIT, WAIT, fossilize()]).epochs(7)
    assert [round(d.alphas[0], 3) for d in own.grower.log] == [0, 0, 0.233, 0.467, 0.7, 0.7, 0.7]
    assert own.grower.stages == {"column 1": Stage.FOSSILIZED, "column 2": Stage.DORMANT}
    assert own.grower.log[0].blueprint == "column_double"
    assert own.grower.log[-1].doublings > log2(4)  # below 1.0 the model stays beside a column of twice its width
    before = grown(own.model)
    own.epochs(1)
    assert any(not torch.equal(before[name], p) for name, p in grown(own.model).items())


def test_two_columns_and_a_seed_in_the_stream_grow_together_and_shrink() -> None:
    script = [germinate(), grow(1, target=0), grow(2, size="half"), *map(advance, (0, 1, 2, 1, 0)), prune(1), prune(0)]
    own = run("mlp", script, slots=["3"]).epochs(8)
    assert [d.reason for d in own.grower.log] == [""] * 8
    assert list(own.grower.stages) == ["3", "column 1", "column 2"]
    assert len(own.optimizer.param_groups) == 4
    assert count(own.model) == count(mlp()) + own.grower.added_parameters
    for slot, groups in ((1, 3), (0, 2)):
        gone = list(column_of(own, slot).parameters())
        own.train()
        assert all(p in own.optimizer.state for p in gone)
        own.grower.step(*own.validate())
        assert len(own.optimizer.param_groups) == groups
        assert not any(p in own.optimizer.state for p in gone)
        assert count(own.model) == count(mlp()) + own.grower.added_parameters
    own.epochs(6)
    assert own.grower.stages["3"] is own.grower.stages["column 1"] is Stage.DORMANT


def test_building_a_column_leaves_the_users_random_numbers_alone() -> None:
    def factory(scale: float) -> nn.Module:
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        torch.nn.init.normal_(torch.empty(3))
        return mlp(width=int(12 * scale), seed=int(torch.initial_seed() % 1000))

    def state() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    model = mlp()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    before = state()
    own = Run(model, Script([grow()]), [], columns=Column(factory))
    assert state() == before
    own.grower.step(*own.validate())
    assert own.grower.log[0].op == "GERMINATE"
    assert state() == before


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
    assert own.grower.stages == {"3": Stage.PRUNED, "column 1": Stage.FOSSILIZED, "column 2": Stage.HOLDING}
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
    assert own.grower.stages == {"column 1": Stage.PRUNED, "column 2": Stage.FOSSILIZED}
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
