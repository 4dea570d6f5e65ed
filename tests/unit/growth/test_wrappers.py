"""Growing with mixed precision, and `torch.compile`."""

from __future__ import annotations

import io
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.growth.controller import GrowthController
from actors.slots.stage import Stage
from tests.support.growth.columns import (
    COLUMN,
    JOINED,
    MODELS,
    REPLACED,
    ResNet,
    column_of,
    count,
    grow,
    run,
    shadow_gradients,
)
from tests.support.growth.growing import WAIT, Run, Script, advance, data, germinate, mlp, prune

JOIN_AND_PRUNE = [grow(speed=1), advance(), advance(), WAIT, prune(), WAIT]
SEED = [germinate(0, 3, 2, 1, 1), advance(), advance(), WAIT, WAIT, prune(), WAIT]


@pytest.mark.parametrize(
    ("name", "script", "where"),
    [
        ("mlp", REPLACED, "outside"),
        ("mlp", REPLACED, "in place"),
        ("mlp", JOINED, "within"),
        ("gru", JOIN_AND_PRUNE, "outside"),
        ("seeds", SEED, "outside"),
        pytest.param("seeds", SEED, "in place", marks=pytest.mark.long),
    ],
)
def test_a_compiled_model_sees_every_change(name: str, script: Any, where: str) -> None:
    """A compiled and an eager run of one script agree after every op, without graph breaks; so do their FLOPs."""
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled(model: Any) -> nn.Module:
        options: dict[str, Any] = {"backend": backend, "fullgraph": name != "gru" and where != "within"}
        if where == "outside":
            return torch.compile(model, **options)
        (model if where == "in place" else model[3]).compile(**options)
        return model

    torch.compiler.reset()
    plain, own = (
        Run(mlp(), Script(script), ["3"], wrap=wrap) if name == "seeds" else run(name, script, wrap=wrap)
        for wrap in (lambda m: m, compiled)
    )
    for _ in range(8):
        plain.epochs(1)
        own.epochs(1)
        assert own.grower.stages == plain.grower.stages
    torch.testing.assert_close(own.losses, plain.losses, rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 14
    assert graphs or where == "within"
    assert own.grower.log[-1].compute_doublings == plain.grower.log[-1].compute_doublings
    assert ("FOSSILIZED" in own.grower.log[-1].stages) == (script is REPLACED)
    torch.compiler.reset()


def by_hand(model: Any) -> nn.Module:
    """As `Accelerator.prepare` wraps a model."""
    forward = torch.autocast("cpu", torch.bfloat16)(type(model).forward)
    model._original_forward = model.forward
    model.forward = MethodType(lambda self, x: forward(self, x).float(), model)
    return model


def by_accelerate(model: nn.Module) -> nn.Module:
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(model)


@pytest.mark.parametrize("prepare", [by_hand, by_accelerate])
@pytest.mark.parametrize("loss_kind", ["own", "rest"])
def test_columns_enter_the_mixed_precision_that_a_models_forward_enters(prepare: Any, loss_kind: Any) -> None:
    def within(network: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return nn.Sequential.forward(network, x).float()

    columns = Column(COLUMN.factory, loss=loss_kind)
    own = Run(mlp(), Script(JOINED), [], wrap=prepare, columns=columns).epochs(2)
    rows, column = slice(0, 32), column_of(own)
    x, y = own.x_y[0][rows], own.x_y[1][rows]
    own.model.train()
    found = shadow_gradients(own, rows)
    logits = within(column) if loss_kind == "own" else 0.5 * within(own.model).detach() + 0.5 * within(column)
    expected = torch.autograd.grad(F.cross_entropy(logits, y), list(column.parameters()))
    assert all(torch.equal(found[p], g) for p, g in zip(column.parameters(), expected, strict=True))
    own.epochs(2)
    alpha = own.grower.log[-1].alphas[0]
    assert alpha > 0
    own.model.eval()
    torch.testing.assert_close(own.model(x), (1 - alpha) * within(own.model) + alpha * within(column))
    file = io.BytesIO()
    torch.save(own.grower.export(), file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), own.model(x), rtol=0.1, atol=0.1)
    with pytest.raises(UserError, match=r"returned a ResNet: with accelerate's mixed precision .* a Sequential"):
        Run(mlp(), Script([]), [], wrap=prepare, columns=Column(lambda s: ResNet(int(4 * s))))


def test_the_cap_holds_for_columns() -> None:
    half, host = (count(MODELS["gru"][0](scale)) for scale in (0.5, 1.0))
    capped = run("gru", [grow(), grow(size="half"), grow(1, size="half")], max_added_parameters=half).epochs(3)
    assert ["not legal" in d.reason for d in capped.grower.log] == [True, False, True]
    assert capped.grower.added_parameters == half
    assert run("gru", []).grower.max_added_parameters == 16 * host


def test_the_cap_of_what_is_isolated_holds_on_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Two trials run together; what joins counts against another cap."""
    half, double = (count(MODELS["gru"][0](scale)) for scale in (0.5, 2.0))
    script = [grow(size="half"), grow(1), WAIT, grow(1, size="half")]
    limits = {"max_added_parameters": double, "max_isolated_parameters": 2 * half}
    own = run("gru", script, **limits).epochs(4)
    assert [d.op for d in own.grower.log] == ["GERMINATE", "WAIT", "WAIT", "GERMINATE"]
    (said,) = [r.getMessage() for r in caplog.records if "budget" in r.getMessage()]
    assert [f"column_{size}" in said for size in ("same", "quad", "half")] == [True, True, False]


def test_a_frozen_backbone_does_not_forbid_growing(caplog: pytest.LogCaptureFixture) -> None:
    """Budgets are multiples of all parameters, and columns of all sizes can grow."""
    torch.manual_seed(0)
    make, shape = MODELS["resnet"]
    model = make(1.0).requires_grad_(False)
    model.head.requires_grad_(True)
    own = Run(model, Script([grow(size="quad"), *JOINED[1:]]), [], shape, columns=Column(make)).epochs(4)
    assert [d.reason for d in own.grower.log] == [""] * 4
    assert own.grower.stages["column 1"] is Stage.HOLDING
    assert "budget" not in caplog.text


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "32-true"])
def test_columns_run_in_the_precision_of_fabric(precision: Any) -> None:
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", precision=precision)
    dtypes = []

    def build(scale: float) -> nn.Module:
        network = mlp(width=int(12 * scale))
        if scale > 1:
            network[0].register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
        return network

    plain = mlp()
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    x, y = data(6)
    options: dict[str, Any] = {"columns": Column(build), "policy": "fixed-column:double@0", "horizon_epochs": 4}
    grower = GrowthController(model, optimizer=optimizer, **options)
    grower.step(1.0, 0.5)
    for _ in range(4):
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(model(x), y))
        grower.shadow(lambda: F.cross_entropy(model(x), y))
        optimizer.step()
        grower.step(1.0, 0.5)
    assert set(dtypes) == {torch.float32 if precision == "32-true" else torch.bfloat16}
    grown = grower.export()
    assert not any("Fabric" in type(module).__name__ for module in grown.modules())
    with torch.no_grad():
        torch.testing.assert_close(grown.to(torch.float32)(x), model(x).float(), rtol=0.05, atol=0.05)
