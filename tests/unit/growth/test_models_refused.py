"""Models that cannot grow are refused in one line; layouts and factories that only look difficult are not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from actors.errors import UserError
from actors.growth.columns.column import Column
from tests.support.growth.columns import YOUNG, ResNet, grow
from tests.support.growth.growing import Run, Script, mlp

COLUMN = Column(lambda scale: mlp(width=int(12 * scale)))


def start(model: nn.Module, **options: Any) -> Run:
    return Run(model, Script([]), [], **{"columns": COLUMN, **options})


def test_lazy_and_meta_models_are_refused() -> None:
    with pytest.raises(UserError, match="lazy layers of unknown size: call it once"):
        start(nn.Sequential(nn.LazyLinear(12), nn.Linear(12, 3)))
    with torch.device("meta"):
        model = nn.Linear(6, 3)
    with pytest.raises(UserError, match="on the device `meta`"):
        start(model)


def test_sharded_models_are_refused(tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = mlp()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(UserError, match=r"parameters are sharded .* grow it with DistributedDataParallel"):
            start(model)
    finally:
        dist.destroy_process_group()


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
        out: torch.Tensor = self.head(self.attend(h, h, h)[0][0])
        return out


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
    column = Column(lambda scale: ResNet(int(4 * scale)))
    own = Run(model, Script(YOUNG), [], (1, 5, 5), columns=column).epochs(3)
    weights = [p for name, p in own.model.named_parameters() if "seed" in name and p.dim() == 4 and p.shape[1] > 1]
    assert weights
    assert all(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in weights)
