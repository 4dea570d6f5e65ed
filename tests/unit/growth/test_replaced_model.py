"""A column that is fossilized at alpha 1.0 becomes the model: the host and what grew in it are gone."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.columns import MODELS, column_of, grow, run
from tests.support.growth.growing import WAIT, Run, Script, advance, fossilize, germinate, mlp

JOIN = [grow(), advance(), advance(), fossilize()]


@pytest.mark.parametrize("name", MODELS)
def test_the_model_becomes_the_column(name: str) -> None:
    make, _ = MODELS[name]
    own = run(name, JOIN).epochs(3)
    host = [p for n, p in own.model.named_parameters() if "tamiyo" not in n]
    column, x = column_of(own), own.x_y[0]
    own.train()
    own.model.eval()
    before = own.model(x)
    assert torch.equal(before, column.eval()(x)), "alpha is 1: the mix is the column to the bit"
    own.grower.step(*own.validate())
    assert own.grower.stages["column 1"] is Stage.FOSSILIZED
    assert torch.equal(own.model(x), before)
    wide = make(2.0)
    assert {n: p.shape for n, p in own.model.named_parameters()} == {n: p.shape for n, p in wide.named_parameters()}
    assert own.grower.added_parameters == sum(p.numel() for p in wide.parameters()) - sum(p.numel() for p in host)
    assert all(not p.requires_grad and p.grad is None and p not in own.optimizer.state for p in host)
    values = [p.clone() for p in host]
    alone = make(2.0)
    alone.load_state_dict(own.model.state_dict())
    own.epochs(1)
    assert all(torch.equal(a, b) for a, b in zip(values, host, strict=True)), "no decay either"
    assert not torch.equal(own.model.eval()(x), before), "it continues to learn"
    alone.load_state_dict(own.model.state_dict())
    exported = own.grower.export().eval()
    assert type(exported) is type(alone)
    assert exported.state_dict().keys() == alone.state_dict().keys()
    assert torch.equal(exported(x), alone.eval()(x))


def test_seeds_in_the_stream_go_with_the_host_and_columns_that_joined_later_stay() -> None:
    torch.manual_seed(0)
    script = [germinate(0), grow(1), grow(2, size="same", target=0), advance(0), advance(1), advance(2)]
    script += [advance(0), advance(1), advance(2), fossilize(0), fossilize(1)]
    columns = Column(lambda s: mlp(width=int(12 * s)))
    own = Run(mlp(), Script(script), ["3"], columns=columns).epochs(10)
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
    count = sum(p.numel() for p in own.model.parameters())
    assert count == own.grower._growth.host_params + own.grower.added_parameters
    own.epochs(6)
    assert own.grower.stages["3"] is Stage.DORMANT
    assert not own.grower._growth.masks().slot[1, 0], "there is no stream in which a seed could grow"


def test_a_second_column_replaces_the_first() -> None:
    torch.manual_seed(0)
    script = [*JOIN, grow(1, size="quad"), advance(1), advance(1), WAIT, fossilize(1)]
    own = run("gru", script).epochs(9)
    assert {k: s.name for k, s in own.grower.stages.items()} == {"column 1": "PRUNED", "column 2": "FOSSILIZED"}
    quad = MODELS["gru"][0](4.0)
    quad.load_state_dict(own.model.state_dict())
    x = own.x_y[0]
    assert torch.equal(own.model(x), quad(x))
    kept = sum(p.numel() for p in quad.parameters())
    assert own.grower.log[-1].doublings == pytest.approx(math.log2(kept / own.grower._growth.host_params))
    assert len(own.optimizer.param_groups) == 2
    own.epochs(1)


def test_contributions_are_measured_of_what_can_be_switched_off() -> None:
    torch.manual_seed(0)
    script = [*JOIN, grow(1, target=0), advance(1), advance(1)]
    asked: list[int] = []

    def evaluate() -> float:
        asked.append(len(own.grower._seeds._alphas))
        return 0.1 * asked[-1]  # each column helps

    own = run("gru", script, evaluate=evaluate)
    own.epochs(8)
    first, second = own.grower._growth.slots
    asked.clear()
    own.epochs(1)
    assert sorted(asked) == [0, 1], "with the second column and without; the model itself is always there"
    assert second.contribution is not None
    assert second.epochs_since_contribution == 0
    assert first.epochs_since_contribution > 1


@pytest.mark.parametrize("cut", [3, 4, 6])
@pytest.mark.parametrize("output", ["", "head"])
def test_resume_is_bit_equal(cut: int, output: str) -> None:
    script = [*JOIN, grow(1, size="half", target=0), advance(1), advance(1)]

    def play(own: Run, epochs: int) -> list[float]:
        own.epochs(epochs)
        return own.losses

    whole, first, second = (run("resnet", script, output=output) for _ in range(3))
    torch.manual_seed(1)
    play(whole, 9)
    torch.manual_seed(1)
    play(first, cut)
    file = io.BytesIO()
    torch.save([s.state_dict() for s in (first.grower, first.model, first.optimizer)] + [torch.get_rng_state()], file)
    file.seek(0)
    grower, model, optimizer, rng = torch.load(file, weights_only=True)
    second.grower.load_state_dict(grower)
    second.model.load_state_dict(model)
    second.optimizer.load_state_dict(optimizer)
    torch.set_rng_state(rng)
    play(second, 9 - cut)
    assert first.losses + second.losses == whole.losses
    expected, found = whole.model.state_dict(), second.model.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[k], found[k]) for k in expected)
    with pytest.raises(UserError, match="column 1 has replaced the model: load states into a new one"):
        whole.grower.load_state_dict(grower)


class OwnLoss(nn.Module):
    """Returns its loss; what comes after the head has parameters of its own if `scaled`."""

    def __init__(self, width: int, scaled: bool) -> None:
        super().__init__()
        self.net, self.drop = mlp(width=width), nn.Dropout(0.1)
        self.scale = nn.Parameter(torch.full((), 1.5)) if scaled else None

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.net(self.drop(x))
        logits = logits if self.scale is None else self.scale * logits
        return logits if labels is None else torch.nn.functional.cross_entropy(logits, labels)


class OwnLossRun(Run):
    def loss(self, rows: slice) -> Tensor:
        loss: Tensor = self.model(self.x_y[0][rows], labels=self.x_y[1][rows])
        return loss


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("loss_kind", ["own", "rest"])
def test_a_part_of_a_model_is_replaced_only_as_far_as_the_column_learned(scaled: bool, loss_kind: Any) -> None:
    """What follows the named module, and has parameters, stays the host's: a column's were never trained."""
    torch.manual_seed(0)
    columns = Column(lambda s: OwnLoss(int(12 * s), scaled), output="net", loss=loss_kind)
    own = OwnLossRun(OwnLoss(12, scaled), Script(JOIN), [], columns=columns).epochs(3)
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
    assert (own.grower._seeds.adopted is None) is scaled
    assert own.model.net[0].out_features == (12 if scaled else 24)
    own.epochs(2)
    if scaled:
        assert own.model.scale.item() != 1.5


@pytest.mark.parametrize("start", [0, 2, 3])
def test_averages_become_the_column_too(start: int) -> None:
    """Whether or not they began before it germinated; PyTorch's are found."""
    make, shape = MODELS["gru"]
    torch.manual_seed(0)
    model = make(1.0)
    own = Run(model, Script(JOIN), [], shape, columns=Column(make)).epochs(start)
    ema = AveragedModel(model)
    for epoch in range(start, 6):
        own.train()
        ema.update_parameters(model)
        own.grower.step(*own.validate())
        if epoch < 3:
            names = [n.removeprefix("module.") for n, _ in ema.named_parameters()]
            assert names == [n for n, _ in model.named_parameters()]
    wide = make(2.0)
    wide.load_state_dict(ema.module.state_dict())
    x = own.x_y[0]
    assert torch.equal(wide(x), ema(x))
    assert (ema(x) - model(x)).abs().max() < 1
    assert ema.n_averaged == 6 - start


def test_followers_become_the_column_too() -> None:
    make, shape = MODELS["resnet"]
    torch.manual_seed(0)
    model = make(1.0)
    own = Run(model, Script([*JOIN, grow(1, target=0), advance(1), advance(1)]), [], shape, columns=Column(make))
    ema = AveragedModel(model)
    own.grower.follow(ema)
    for _ in range(8):
        own.epochs(1)
        ema.update_parameters(model)
    assert [n.removeprefix("module.") for n, _ in ema.named_parameters()] == [n for n, _ in model.named_parameters()]
    ema.module.load_state_dict(model.state_dict())
    assert torch.equal(ema.eval()(own.x_y[0]), model.eval()(own.x_y[0]))
    with pytest.raises(UserError, match="this copy is one of the old: copy the model again"):
        own.grower.follow(make(1.0))


@pytest.mark.parametrize("where", ["outside", "in place"])
def test_a_compiled_model_becomes_the_column(where: str) -> None:
    def compiled(model: nn.Module) -> nn.Module:
        if where == "outside":
            return torch.compile(model, backend="eager", fullgraph=True)
        model.compile(backend="eager", fullgraph=True)
        return model

    torch.compiler.reset()
    runs = []
    for wrap in (lambda m: m, compiled):
        torch.manual_seed(0)
        columns = Column(lambda s: mlp(width=int(12 * s)))
        script = [*JOIN, grow(1, target=0), advance(1), advance(1)]
        runs.append(Run(mlp(), Script(script), [], columns=columns, wrap=wrap).epochs(8))
    plain, own = runs
    assert own.grower.stages == plain.grower.stages
    assert own.grower._seeds.adopted is not None
    torch.testing.assert_close(own.losses, plain.losses, rtol=1e-5, atol=1e-6)
    torch.compiler.reset()
