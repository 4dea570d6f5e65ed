"""Averages of a model's weights grow with the model, whoever computes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from actors.growth.columns.column import Column
from tests.support.growth.columns import JOINED, ResNet
from tests.support.growth.growing import WAIT, Run, Script, prune


class Backbone(nn.Module):
    """A model whose columns are registered in its middle, so that parameters are no longer paired by position."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.temperature = ResNet(), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.temperature(self.net(x))
        return out


class HandEma(nn.Module):
    """As in timm: a copy whose values are paired by position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(model).eval()

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        own, given = self.module.state_dict().values(), model.state_dict().values()
        for average, value in zip(own, given, strict=False):
            average.copy_(0.5 * average + 0.5 * value)


def timm_ema(name: str) -> Callable[[nn.Module], Any]:
    def make(model: nn.Module) -> Any:
        pytest.importorskip("timm")
        import timm.utils

        return getattr(timm.utils, name)(model, decay=0.5)

    return make


AVERAGES: dict[str, Callable[[nn.Module], Any]] = {
    "torch": lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True),
    "hand": HandEma,
    "timm V2": timm_ema("ModelEmaV2"),
    "timm V3": timm_ema("ModelEmaV3"),
}


@pytest.mark.parametrize("early", [True, False], ids=["before the controller", "after it"])
@pytest.mark.parametrize("kind", AVERAGES)
def test_an_average_follows_without_being_told(kind: str, early: bool) -> None:
    """Ended by steps with weights that no longer change, it computes what the model computes."""
    torch.manual_seed(0)
    model = Backbone()
    ema = AVERAGES[kind](model) if early else None
    column = Column(lambda scale: ResNet(int(4 * scale)), model="net")
    own = Run(model, Script([*JOINED, WAIT, WAIT, prune()]), [], (1, 5, 5), columns=column)
    ema = ema or AVERAGES[kind](model)
    update = getattr(ema, "update_parameters", None) or ema.update
    for _ in range(4):
        own.epochs(1)
        update(model)
    assert own.grower.log[-1].stages[0] in ("BLENDING", "HOLDING")
    for _ in range(40):
        update(model)
    x = own.x_y[0]
    torch.testing.assert_close(ema.module.eval()(x), model.eval()(x), rtol=1e-4, atol=1e-4)
    own.epochs(2)
    update(model)
    assert [n for n, _ in ema.module.named_parameters()] == [n for n, _ in model.named_parameters()]


def test_a_plain_copy_is_left_alone() -> None:
    """As a teacher, or the best model so far."""
    torch.manual_seed(0)
    model = ResNet()
    teacher = copy.deepcopy(model)
    column = Column(lambda scale: ResNet(int(4 * scale)))
    Run(model, Script(JOINED), [], (1, 5, 5), columns=column).epochs(4)
    assert [n for n, _ in teacher.named_parameters()] == [n for n, _ in ResNet().named_parameters()]


def test_the_average_of_another_run_is_left_alone() -> None:
    """As of the run before, which is kept to be compared. One that was loaded anew is the model's own."""
    torch.manual_seed(0)
    column = Column(lambda scale: ResNet(int(4 * scale)))
    first = HandEma(ResNet())
    model = ResNet()
    own = Run(model, Script(JOINED), [], (1, 5, 5), columns=column).epochs(4)
    assert [n for n, _ in first.module.named_parameters()] == [n for n, _ in ResNet().named_parameters()]
    fresh = ResNet()
    ema = HandEma(fresh)
    resumed = Run(fresh, Script([]), [], (1, 5, 5), columns=column)
    resumed.grower.load_state_dict(own.grower.state_dict())
    ema.module.load_state_dict(model.state_dict())
    torch.testing.assert_close(ema.module(own.x_y[0]), model.eval()(own.x_y[0]))


class ShadowEMA:
    """As in torch_ema and diffusers: a list of averages, paired with the parameters that each update is given."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow_params = [p.detach().clone() for p in model.parameters()]


def test_an_average_of_a_list_of_parameters_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = ResNet()
    ema, other = ShadowEMA(model), ShadowEMA(Backbone())
    column = Column(lambda scale: ResNet(int(4 * scale)))
    Run(model, Script(JOINED), [], (1, 5, 5), columns=column).epochs(2)
    assert len(ema.shadow_params) != len(other.shadow_params)
    assert caplog.text.count("ShadowEMA averages a fixed list of parameters") == 1
