"""Averages of a model's weights grow with the model, whoever computes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.columns import JOINED, MODELS, REPLACED, Backbone, ResNet, grow
from tests.support.growth.growing import WAIT, Run, Script, advance, fossilize, prune

COLUMN_OF_RESNET = Column(MODELS["resnet"][0])


@torch.no_grad()
def move(averages: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for average, value in zip(averages, values, strict=False):
        average.copy_(0.5 * average + 0.5 * value)


class HandEma(nn.Module):
    """As in timm: a copy whose values are paired by position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(model).eval()

    def update(self, model: nn.Module) -> None:
        move(self.module.state_dict().values(), model.state_dict().values())


class HandListEMA:
    """As in torch_ema and diffusers: a list of averages, paired by position with the parameters of each update."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow_params = [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        move(self.shadow_params, model.parameters())


def average(kind: str, model: nn.Module) -> tuple[Any, Callable[[nn.Module], Any]]:
    """Return an average and what updates it."""
    ema: Any
    match kind:
        case "torch":
            ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
            return ema, ema.update_parameters
        case "hand":
            ema = HandEma(model)
        case "hand, a list":
            ema = HandListEMA(model)
        case "torch_ema":  # by parameters that it remembers
            ema = pytest.importorskip("torch_ema").ExponentialMovingAverage(model.parameters(), 0.5)
            return ema, lambda _: ema.update()
        case "diffusers":
            ema = pytest.importorskip("diffusers.training_utils").EMAModel(model.parameters(), decay=0.5, foreach=True)
            return ema, lambda m: ema.step(m.parameters())
        case "ema_pytorch":  # by names that it remembers
            ema = pytest.importorskip("ema_pytorch").EMA(model, beta=0.5, update_after_step=0, update_every=1)
            return ema, lambda _: ema.update()
        case _:
            ema = getattr(pytest.importorskip("timm.utils"), kind)(model, decay=0.5)
    return ema, ema.update


KINDS = ["torch", "hand", "hand, a list", "ModelEma", "ModelEmaV3", "torch_ema", "diffusers", "ema_pytorch"]


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def averaged(ema: Any, model: nn.Module) -> nn.Module:
    """Return a model with the averages."""
    if hasattr(ema, "shadow_params"):
        made = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, average in zip(made.parameters(), ema.shadow_params, strict=True):
                parameter.copy_(average)
        return made
    return next(v for v in (getattr(ema, n, None) for n in ("module", "ema_model", "ema")) if v is not None)


@pytest.mark.parametrize("early", [True, False], ids=["before the controller", "after it"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_average_follows_without_being_told(kind: str, early: bool) -> None:
    """Of a model with a column in its middle, which joins, is pruned, and is followed by one that replaces the host."""
    torch.manual_seed(0)
    model = Backbone()
    made = average(kind, model) if early else None
    column = Column(COLUMN_OF_RESNET.factory, model="net")
    script = [*JOINED, WAIT, WAIT, prune(), grow(1), advance(1), advance(1), fossilize(1)]
    own = Run(model, Script(script), [], (1, 5, 5), columns=column)
    ema, update = made or average(kind, model)

    def is_the_average() -> bool:
        """Whether it is the model, once that stays as it is."""
        for _ in range(40):
            update(model)
        average = averaged(ema, model).eval()
        torch.testing.assert_close(average(own.x_y[0]), model.eval()(own.x_y[0]), rtol=1e-4, atol=1e-4)
        return names(average) == names(model)

    for _ in range(4):
        own.epochs(1)
        update(model)
    assert own.grower.log[-1].stages[0] in ("BLENDING", "HOLDING")
    assert is_the_average()
    own.epochs(2)
    assert is_the_average()
    for _ in range(4):
        own.epochs(1)
        update(model)
    assert own.grower.stages["column 2"] is Stage.FOSSILIZED
    assert is_the_average()


def test_a_plain_copy_is_left_alone_unless_it_is_to_follow() -> None:
    """It may be a teacher, or the best model so far."""
    torch.manual_seed(0)
    model = ResNet()
    teacher, follower = copy.deepcopy(model), copy.deepcopy(model)
    own = Run(model, Script(REPLACED), [], (1, 5, 5), columns=COLUMN_OF_RESNET)
    own.grower.follow(follower)
    own.epochs(8)
    assert names(teacher) == names(ResNet())
    follower.load_state_dict(model.state_dict())
    assert torch.equal(follower.eval()(own.x_y[0]), model.eval()(own.x_y[0]))
    with pytest.raises(UserError, match="this copy is one of the old: copy the model again"):
        own.grower.follow(ResNet())


def test_averages_of_other_runs_and_models_are_left_alone() -> None:
    """As of the run before, which is kept to be compared. One that was loaded anew is the model's own."""
    torch.manual_seed(0)
    first, listed, other = HandEma(ResNet()), HandListEMA(ResNet()), HandListEMA(Backbone())
    model = ResNet()
    its = HandListEMA(model)
    own = Run(model, Script(JOINED), [], (1, 5, 5), columns=COLUMN_OF_RESNET).epochs(4)
    assert names(first.module) == names(ResNet())
    assert len(listed.shadow_params) == len(list(ResNet().parameters())) < len(its.shadow_params)
    assert len(other.shadow_params) == len(list(Backbone().parameters()))
    fresh = ResNet()
    ema = HandEma(fresh)
    resumed = Run(fresh, Script([]), [], (1, 5, 5), columns=COLUMN_OF_RESNET)
    resumed.grower.load_state_dict(own.grower.state_dict())
    ema.module.load_state_dict(model.state_dict())
    torch.testing.assert_close(ema.module(own.x_y[0]), model.eval()(own.x_y[0]))
