"""The controller with averaged weights, mixed precision, and `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from actors.slots.stage import Stage
from tests.support.growth.growing import GROWN, WAIT, ConvNet, Run, Script, advance, germinate, mlp, prune


@pytest.mark.parametrize("early", [True, False])
def test_an_averaged_model_grows_and_shrinks_with_the_model(early: bool) -> None:
    """The average is created before the controller or after it."""
    model = mlp()
    before = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)) if early else None
    own = Run(model, Script([*GROWN, WAIT, prune()]), ["3"])
    ema = before or AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    own.grower.follow(ema)
    for _ in range(4):
        own.epochs(1)
        ema.update_parameters(model)
    names = [n for n, _ in model.named_parameters()]
    assert [n.removeprefix("module.") for n, _ in ema.named_parameters()] == names
    x = own.x_y[0]
    assert not torch.equal(ema(x), model(x))
    for _ in range(30):  # an average of what no longer moves is what it is
        ema.update_parameters(model)
    torch.testing.assert_close(ema(x), model(x))
    own.epochs(1)
    ema.update_parameters(model)
    assert [n.removeprefix("module.") for n, _ in ema.named_parameters()] == [n for n, _ in mlp().named_parameters()]


def scaled(own: Run, epochs: int, dtype: torch.dtype) -> list[float]:
    """A loop with autocast and a `GradScaler`."""
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=1024.0), []

    def loss(rows: slice) -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            x, y = own.x_y
            return F.cross_entropy(own.model(x[rows]), y[rows])

    for _ in range(epochs):
        own.model.train()
        for start in range(0, 96, 32):
            rows = slice(start, start + 32)
            own.optimizer.zero_grad()
            main = loss(rows)
            scaler.scale(main).backward()
            own.grower.shadow(lambda rows=rows: scaler.scale(loss(rows)))
            scaler.step(own.optimizer)
            scaler.update()
            losses.append(main.item())
        own.grower.step(*own.validate())
    return losses


@pytest.mark.parametrize(
    ("dtype", "make", "slot", "shape"),
    [(torch.bfloat16, mlp, "3", (6,)), (torch.float16, ConvNet, "stem", (1, 5, 4))],
)
def test_mixed_precision_with_scaled_losses(dtype: torch.dtype, make: Any, slot: str, shape: tuple[int, ...]) -> None:
    own = Run(make(), Script(GROWN), [slot], shape)
    losses = scaled(own, 6, dtype)
    assert own.grower.stages == {slot: Stage.HOLDING}
    alone = scaled(Run(make(), Script([]), [slot], shape), 3, dtype)
    assert losses[:9] == alone
    norm = own.grower._growth.slots[0].gradient_norm
    assert norm is not None
    assert 0 < norm < 10  # of gradients that the scaler has divided again
    assert all(torch.isfinite(p).all() for p in own.model.parameters())


@pytest.mark.parametrize("where", ["outside", pytest.param("in place", marks=pytest.mark.long)])
def test_a_compiled_model_sees_every_change(where: str) -> None:
    """A compiled and an eager run of one script agree after every op, without graph breaks."""
    script = [germinate(0, 3, 2, 1, 1), advance(), advance(), WAIT, WAIT, prune(), WAIT]
    counts = []

    def count(graph: Any, inputs: Any) -> Any:
        counts.append(graph)
        return graph.forward

    def wrap(model: nn.Module) -> nn.Module:
        if where == "outside":
            return torch.compile(model, backend=count, fullgraph=True)
        model.compile(backend=count, fullgraph=True)
        return model

    torch.compiler.reset()
    plain = Run(mlp(), Script(script), ["3"])
    own = Run(mlp(), Script(script), ["3"], wrap=wrap)
    for _ in range(8):
        plain.epochs(1)
        own.epochs(1)
        assert own.grower.stages == plain.grower.stages
        torch.testing.assert_close(own.losses, plain.losses, rtol=1e-5, atol=1e-6)
    assert (3 if where == "outside" else 1) <= len(counts) <= 14
    torch.compiler.reset()


@pytest.mark.parametrize("dims", [1, pytest.param(2, marks=pytest.mark.long)])
def test_compiled_convolutions_can_grow(dims: int) -> None:
    shape = (1, 9) if dims == 1 else (1, 5, 4)
    torch.compiler.reset()
    script = [germinate(0, 4), advance(), advance()]
    plain = Run(ConvNet(dims), Script(script), ["stem"], shape).epochs(4)
    own = Run(ConvNet(dims), Script(script), ["stem"], shape, wrap=lambda m: torch.compile(m, backend="eager"))
    own.epochs(4)
    assert own.grower.stages == {"stem": Stage.HOLDING}
    torch.testing.assert_close(own.losses, plain.losses, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()
