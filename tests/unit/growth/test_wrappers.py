"""The controller with averaged weights, mixed precision, and `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.growth.growing import WAIT, Run, Script, advance, germinate, mlp, prune


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
