"""What cannot grow is refused in one line; layouts and factories that only look difficult are not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW, Muon, Optimizer

from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.growth.controller import GrowthController
from actors.growth.slots import SlotSpec
from tests.support.growth.columns import COLUMN, YOUNG, ResNet, grow, run
from tests.support.growth.growing import GROWN, Run, Script, mlp


def start(model: nn.Module, **options: Any) -> GrowthController:
    """Create a controller; its columns and its optimizer may be functions of the model."""
    settings: dict[str, Any] = {
        "slots": [], "optimizer": lambda m: SGD(m.parameters(), 0.1), "columns": COLUMN, "horizon_epochs": 5,
        "policy": Script([]),
    }  # fmt: skip
    settings |= options
    for name in ("optimizer", "columns"):
        if callable(settings[name]):
            settings[name] = settings[name](model)
    return GrowthController(model, **settings)


def column(factory: Any = COLUMN.factory, **options: Any) -> Callable[[nn.Module], Column]:
    return lambda model: Column(factory, **options)


def of_model(take: Callable[[Any], nn.Module]) -> Callable[[nn.Module], Column]:
    """Columns whose factory returns a part of the model itself."""
    return lambda model: Column(lambda scale: take(model))


def broken(scale: float) -> nn.Module:
    raise ValueError("embed_dim must be divisible\nby num_heads")


class Foreign(Optimizer):
    """An optimizer that runs no hooks and holds another with groups of its own."""

    def __init__(self, inner: Optimizer) -> None:
        self.param_groups, self.inner = list(inner.param_groups), inner


NARROW = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"slots": ["nowhere"]}, r"no module 'nowhere'.*its modules are 0, 1, 2, 3"),
    ({"slots": ["2"]}, "cannot be inferred from ReLU: give SlotSpec"),
    ({"slots": ["", "5"]}, "at the same place"),
    ({"slots": "1"}, "give a list of names"),
    ({"columns": None}, "1 to 8"),
    ({"slots": ["0", "1", "3"], "columns": column(count=6)}, "9 slots were given, columns included"),
    ({"horizon_epochs": 0}, "must be at least 1"),
    ({"max_added_parameters": 0}, "it must be at least 1"),
    ({"policy": "/nowhere/at/all"}, "no checkpoint at"),
    ({"policy": "fixed-column:huge@3"}, "not a rule"),
    ({"points_per_doubling": -1.0}, "points_per_doubling is -1"),
    ({"train_rows": 0}, "train_rows is 0"),
    ({"best_metric": 1.0}, "set higher_is_better too"),
    ({"columns": column(broken)}, r"factory\(0.5\) of a column failed: embed_dim must be divisible by num_heads"),
    ({"columns": column(lambda s: s)}, "returned float: return a torch.nn.Module"),
    ({"columns": of_model(lambda m: m)}, "the model's own Parameter: return a new network at each call"),
    ({"columns": of_model(lambda m: nn.Sequential(nn.Linear(6, 3), m[2]))}, "the model's own ReLU"),
    ({"columns": column(lambda s: nn.ReLU())}, "without trainable parameters"),
    ({"columns": column(lambda s: nn.LazyLinear(3))}, "returned lazy layers"),
    ({"columns": column(lambda s: NARROW)}, r"factory\(0.5\) .* 1 outputs, the model has 3: .* must not scale"),
    ({"columns": column(output="nowhere")}, "no module 'nowhere'"),
    ({"columns": column(model="nowhere")}, "no module 'nowhere'"),
    ({"columns": column(3)}, "factory"),
    ({"columns": column(loss="all")}, "loss"),
    ({"columns": column(count=9)}, "count"),
    ({"columns": column(lr_scale=0.0)}, "lr_scale"),
    ({"optimizer": None}, "no optimizer was given"),
    ({"optimizer": lambda m: torch.optim.LBFGS(m.parameters())}, "LBFGS treats all parameters as one vector"),
    ({"optimizer": lambda m: AdamW(mlp().parameters())}, "holds no parameter of this model"),
    ({"optimizer": lambda m: [AdamW(m.parameters()), AdamW(mlp().parameters())]}, "holds no parameter of this model"),
    ({"optimizer": lambda m: m}, "of type Sequential: give a torch.optim.Optimizer"),
    ({"optimizer": []}, "the list of optimizers is empty"),
    ({"optimizer": lambda m: Foreign(AdamW(m.parameters()))}, "Foreign runs no step hooks"),
    ({"optimizer": lambda m: Muon([p for p in m.parameters() if p.dim() == 2])}, "Muon trains matrices only"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED, ids=[f"{n}: {says}" for n, (_, says) in enumerate(REFUSED)])
def test_impossible_settings_are_refused_at_construction(options: dict[str, Any], says: str) -> None:
    model = mlp()
    with pytest.raises(UserError, match=says) as refused:
        start(model, **options)
    assert "\n" not in str(refused.value)
    assert "columns" not in options or not [name for name, _ in model.named_modules() if "tamiyo" in name]


def test_lazy_meta_and_sharded_models_are_refused(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="lazy layers of unknown size: call it once"):
        start(nn.Sequential(nn.LazyLinear(12), nn.Linear(12, 3)))
    with torch.device("meta"):
        model: nn.Module = nn.Linear(6, 3)
    with pytest.raises(UserError, match="on the device `meta`"):
        start(model)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(model := mlp(), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(UserError, match=r"parameters are sharded .* grow it with DistributedDataParallel"):
            start(model)
    finally:
        dist.destroy_process_group()


def test_wrong_figures_are_refused() -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        start(mlp()).step(0.3, 93.0)
    own = Run(mlp(), Script(GROWN), {"3": SlotSpec(width=5)})
    with pytest.raises(UserError, match=r"width 5, but its module returned \(32, 12\)"):
        own.epochs(4)


def test_a_second_controller_of_a_grown_model_is_refused() -> None:
    with pytest.raises(UserError, match="another controller has grown this model"):
        start(run("mlp", YOUNG).epochs(2).model)


def test_unwrapped_processes_are_warned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    with caplog.at_level(logging.WARNING):
        start(mlp())
    assert "2 processes train, but the model is not wrapped" in caplog.text


class Heads(nn.Module):
    """Eight heads, so that a width of four is impossible."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed, self.attend = nn.Linear(6, width), nn.MultiheadAttention(width, 8)
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)[None]
        return self.head(self.attend(h, h, h)[0][0])


def test_a_size_that_the_factory_cannot_make_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    script = [grow(size="half"), grow(size="double")]
    with caplog.at_level(logging.WARNING):
        own = Run(Heads(), Script(script), [], columns=Column(lambda scale: Heads(int(8 * scale)))).epochs(2)
    assert "columns of that size are not offered" in caplog.text
    assert ["not legal" in d.reason for d in own.grower.log] == [True, False]
    assert own.grower.log[1].blueprint == "column_double"
    with pytest.raises(UserError, match=r"factory\(0\.5\) of a column failed"):
        start(Heads(), columns=Column(lambda scale: Heads(3)))


def test_a_column_lies_in_memory_as_the_model_does() -> None:
    torch.manual_seed(0)
    model = ResNet().to(memory_format=torch.channels_last)
    columns = Column(lambda scale: ResNet(int(4 * scale)))
    own = Run(model, Script(YOUNG), [], (1, 5, 5), columns=columns).epochs(3)
    weights = [p for name, p in own.model.named_parameters() if "seed" in name and p.dim() == 4 and p.shape[1] > 1]
    assert weights
    assert all(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in weights)
