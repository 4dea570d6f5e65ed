"""Columns beside a user's model: starts, isolation, shadow gradients, optimizer groups, and contributions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actors.growth.columns.column import Column
from actors.growth.columns.grown_model import GrownColumn
from actors.slots.stage import Stage
from tests.support.growth.columns import GATED, MODELS, YOUNG, grow, host_state, run
from tests.support.growth.growing import WAIT, Run, Script, advance, fossilize, mlp, prune


def column_of(own: Run, index: int = 0) -> GrownColumn:
    column = own.grower._seeds.slot_modules[index].seed
    assert isinstance(column, GrownColumn)
    return column


@pytest.mark.parametrize("name", MODELS)
def test_a_column_starts_without_effect_and_can_learn(name: str) -> None:
    """Whatever the architecture: its output is 0 to the bit, and its gradient is not."""
    own = run(name, [grow()]).epochs(1)
    x = own.x_y[0]
    own.model.eval()
    alone = own.model(x)
    with own.grower._seeds.activated({0: 1.0}):
        joined = own.model(x)
    assert torch.equal(alone, joined)
    column = column_of(own)
    assert (column.gate is not None) is (name in GATED)
    gradients = torch.autograd.grad(F.cross_entropy(joined, own.x_y[1]), list(column.parameters()), allow_unused=True)
    assert any(bool(g.any()) for g in gradients if g is not None)
    assert own.grower.added_parameters == sum(p.numel() for p in column.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_column_in_training_leaves_its_host_unchanged(name: str) -> None:
    """Bit for bit, including dropout's random numbers and BatchNorm's running statistics; the column's own move."""
    alone = run(name, []).epochs(4)
    own = run(name, YOUNG).epochs(2)
    before = {n: t.clone() for n, t in column_of(own).state_dict().items()}
    own.epochs(2)
    assert own.losses == alone.losses
    expected, found = host_state(alone.model), host_state(own.model)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[n], found[n]) for n in expected)
    after = column_of(own).state_dict()
    assert any(not torch.equal(before[n], after[n]) for n in before)
    for n in before:
        if "running" in n:
            assert not torch.equal(before[n], after[n])
    assert own.grower._growth.slots[0].gradient_health == 1.0


def test_the_statistics_of_a_column_are_those_of_training_it_alone() -> None:
    """A column's BatchNorm averages over the minibatches of its shadow passes, once each."""
    own = run("resnet", YOUNG).epochs(2)
    assert column_of(own).network.norm.num_batches_tracked == 0
    x = own.x_y[0]
    twin = MODELS["resnet"][0](2.0)
    twin.load_state_dict(column_of(own).network.state_dict())
    own.train()
    assert column_of(own).network.norm.num_batches_tracked == 3
    seen = column_of(own).network.norm.running_mean
    assert own.model.norm.num_batches_tracked == 9
    assert not torch.allclose(seen, torch.zeros_like(seen))
    twin.train()(x[:32])
    assert torch.nn.functional.cosine_similarity(seen, twin.norm.running_mean, 0) > 0.5


@pytest.mark.parametrize("name", MODELS)
def test_stages_alpha_and_the_sum_of_outputs(name: str) -> None:
    own = run(name, [grow(speed=1), advance(), advance(), WAIT, WAIT, WAIT, fossilize()]).epochs(7)
    assert [round(d.alphas[0], 3) for d in own.grower.log] == [0, 0, 0.333, 0.667, 1, 1, 1]
    assert own.grower.stages == {"column 1": Stage.FOSSILIZED, "column 2": Stage.DORMANT}
    assert own.grower.log[0].blueprint == "column_double"
    own.model.eval()
    x = own.x_y[0]
    joined = own.model(x)
    with own.grower._seeds.activated({}):
        host = own.model(x)
    torch.testing.assert_close(joined, host + column_of(own).eval()(x))
    assert not torch.allclose(joined, host)


def test_two_columns_and_a_seed_in_the_stream_grow_together_and_shrink() -> None:
    count = sum(p.numel() for p in mlp().parameters())
    script = [(1, 0, 3, 0, 2, 0), grow(1), grow(2, size="half"), advance(0), advance(1), advance(2), advance(1)]
    column = Column(lambda scale: mlp(width=int(12 * scale)))
    own = Run(mlp(), Script([*script, advance(0), prune(1)]), ["3"], columns=column).epochs(8)
    assert [d.reason for d in own.grower.log] == [""] * 8
    assert list(own.grower.stages) == ["3", "column 1", "column 2"]
    assert len(own.optimizer.param_groups) == 4
    assert sum(p.numel() for p in own.model.parameters()) == count + own.grower.added_parameters
    gone = list(column_of(own, 1).parameters())
    own.train()
    own.grower.step(*own.validate())
    assert len(own.optimizer.param_groups) == 3
    assert not any(p in own.optimizer.state for p in gone)
    assert sum(p.numel() for p in own.model.parameters()) == count + own.grower.added_parameters
    own.epochs(6)
    assert own.grower.stages["column 1"] is Stage.DORMANT


def test_building_a_column_leaves_the_users_random_numbers_alone() -> None:
    def factory(scale: float) -> nn.Module:
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        drawn.append(torch.nn.init.normal_(torch.empty(3)))
        return mlp(width=int(12 * scale), seed=int(torch.initial_seed() % 1000))

    def state() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    drawn: list[Tensor] = []
    model = mlp()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    before = state()
    own = Run(model, Script([grow()]), [], columns=Column(factory))
    assert state() == before
    own.model(own.x_y[0])
    own.model.eval()
    own.grower.step(*own.validate())
    assert own.grower.log[0].op == "GERMINATE"
    assert state() == before


def test_columns_of_one_seed_are_equal_and_of_another_differ() -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(torch.seed() % 1000)  # whatever the user's own numbers are
        model = MODELS["gru"][0](1.0)
        options: dict[str, Any] = {"seed": seed, "columns": Column(MODELS["gru"][0])}
        own = Run(model, Script([grow()]), [], (6,), **options).epochs(1)
        return torch.cat([p.detach().flatten() for p in column_of(own).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
