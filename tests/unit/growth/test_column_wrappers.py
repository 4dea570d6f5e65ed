"""Columns with resumed checkpoints, averaged weights, mixed precision, `torch.compile`, and Lightning."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel

from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.columns import JOINED, MODELS, grow, run
from tests.support.growth.growing import WAIT, Run, Script, advance, mlp, prune
from tests.unit.growth.test_wrappers import scaled

BUSY = [grow(0, speed=2), advance(), grow(1, size="half"), advance(), advance(1), prune(1), WAIT]


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("resnet", 2),
        ("tied transformer", 5),
        pytest.param("resnet", 5, marks=pytest.mark.long),
        pytest.param("tied transformer", 2, marks=pytest.mark.long),
    ],
)
def test_resume_is_bit_equal(name: str, cut: int) -> None:
    """Also where the model runs for the first time after its columns were rebuilt."""

    def make() -> tuple[Run, CosineAnnealingLR]:
        own = run(name, BUSY, train_rows=96)
        return own, CosineAnnealingLR(own.optimizer, 9)

    def play(own: Run, schedule: CosineAnnealingLR, epochs: int) -> None:
        for _ in range(epochs):
            own.epochs(1)
            schedule.step()

    whole, schedule = make()
    play(whole, schedule, 9)
    first, schedule = make()
    play(first, schedule, cut)
    file = io.BytesIO()
    states = [s.state_dict() for s in (first.grower, first.model, first.optimizer, schedule)]
    torch.save([*states, torch.get_rng_state()], file)
    second, schedule = make()
    grower, model, optimizer, scheduled, rng = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    second.grower.load_state_dict(grower)
    second.model.load_state_dict(model)
    second.optimizer.load_state_dict(optimizer)
    schedule.load_state_dict(scheduled)
    torch.set_rng_state(rng)
    play(second, schedule, 9 - cut)
    assert first.losses + second.losses == whole.losses
    own, other = whole.model.state_dict(), second.model.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[k], other[k]) for k in own)
    assert [d.stages for d in whole.grower.log[cut:]] == [d.stages for d in second.grower.log]
    seen = [run_.grower.config.policy.seen for run_ in (whole, second)]  # type: ignore[union-attr]
    assert all((a[0] == b[0]).all() for a, b in zip(seen[0][cut:], seen[1], strict=True)), "the policy sees the same"


@pytest.mark.parametrize("early", [True, False])
def test_an_averaged_model_grows_and_shrinks_with_the_model(early: bool) -> None:
    torch.manual_seed(0)
    make, shape = MODELS["resnet"]
    model = make(1.0)
    before = AveragedModel(model, use_buffers=False) if early else None
    own = Run(model, Script([*JOINED, WAIT, prune()]), [], shape, columns=Column(make))
    ema = before or AveragedModel(model)
    own.grower.follow(ema)
    for _ in range(4):
        own.epochs(1)
        ema.update_parameters(model)
    assert [n.removeprefix("module.") for n, _ in ema.named_parameters()] == [n for n, _ in model.named_parameters()]
    x = own.x_y[0]
    assert ema.module.tamiyo_columns[0].on
    ema.module.load_state_dict(model.state_dict())
    assert torch.equal(ema.eval()(x), model.eval()(x))
    own.epochs(1)
    assert [n for n, _ in ema.module.named_parameters()] == [n for n, _ in make(1.0).named_parameters()]


@pytest.mark.parametrize(("name", "dtype"), [("resnet", torch.bfloat16), ("tied transformer", torch.float16)])
def test_mixed_precision_with_scaled_losses(name: str, dtype: torch.dtype) -> None:
    own = run(name, JOINED)
    losses = scaled(own, 5, dtype)
    assert own.grower.stages["column 1"] is Stage.HOLDING
    assert losses[:9] == scaled(run(name, []), 3, dtype)
    norm = own.grower._growth.slots[0].gradient_norm
    assert norm is not None
    assert 0 < norm < 10  # of gradients that the scaler has divided again
    score = own.grower._growth.slots[1].score
    assert score is not None
    assert 0 < score < 10, "a loss scale cancels"


@pytest.mark.parametrize(
    ("name", "where"),
    [("gru", "outside"), ("resnet", "in place"), pytest.param("resnet", "outside", marks=pytest.mark.long)],
)
def test_a_compiled_model_sees_every_change(name: str, where: str) -> None:
    """A compiled and an eager run of one script agree, without graph breaks."""
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled(model: nn.Module) -> nn.Module:
        if where == "outside":
            return torch.compile(model, backend=count, fullgraph=name == "resnet")
        model.compile(backend=count, fullgraph=True)
        return model

    torch.compiler.reset()
    make, shape = MODELS[name]
    script = [grow(speed=1), advance(), advance(), WAIT, prune(), WAIT]
    runs = []
    for wrap in (lambda m: m, compiled):
        torch.manual_seed(0)
        runs.append(Run(make(1.0), Script(script), [], shape, columns=Column(make), wrap=wrap))
    plain, own = runs
    if where == "in place":  # hooks run within the graph, so that columns start with a gate
        plain.grower._seeds.columns_gated = True
    for _ in range(6):
        plain.epochs(1)
        rng = torch.get_rng_state()
        own.epochs(1)
        torch.set_rng_state(rng)
        assert own.grower.stages == plain.grower.stages
    assert own.grower._seeds.columns_gated is (where == "in place")
    assert graphs
    assert own.grower._growth.slots[1].score is None
    if name == "gru":  # without dropout, the losses are equal
        torch.testing.assert_close(own.losses, plain.losses, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


def test_a_lightning_module_grows_columns_beside_its_network(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from tests.unit.growth.test_lightning import Module

    def fit(module: Any, actions: list[Any], folder: Path, epochs: int, resume: str | None = None) -> Any:
        from torch.utils.data import DataLoader, TensorDataset

        from actors.growth.lightning import GrowthCallback
        from tests.support.growth.growing import data

        columns = Column(lambda scale: mlp(width=int(12 * scale)), model="net")
        growth = GrowthCallback(columns=columns, num_classes=3, policy=Script(actions), horizon_epochs=8)
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[growth, pl.callbacks.ModelCheckpoint(folder, save_last=True)], num_sanity_val_steps=0,
        )  # fmt: skip
        batches = DataLoader(TensorDataset(*data(6)), batch_size=32)
        trainer.fit(module, batches, batches, ckpt_path=resume, weights_only=False)
        return growth.grower

    whole, alone, first, second = Module(), Module(), Module(), Module()
    grower = fit(whole, JOINED, tmp_path / "whole", 6)
    assert grower.stages["column 1"] is Stage.HOLDING
    fit(alone, [], tmp_path / "alone", 3)
    assert whole.seen[:9] == alone.seen, "a young column left its host alone"
    fit(first, JOINED, tmp_path / "cut", 4)
    resumed = fit(second, JOINED, tmp_path / "cut2", 6, str(tmp_path / "cut" / "last.ckpt"))
    assert resumed.stages == grower.stages
    own, other = whole.state_dict(), second.state_dict()
    assert all(torch.equal(own[k], other[k]) for k in own)


def test_dry_run_veto_and_cap_hold_for_columns() -> None:
    dry = run("gru", JOINED, dry_run=True).epochs(3)
    assert dry.losses == run("gru", []).epochs(3).losses
    assert {d.reason for d in dry.grower.log} >= {"dry run"}
    vetoed = run("gru", JOINED, veto=lambda action: action.blueprint > 6).epochs(1)
    assert vetoed.grower.log[0].reason == "veto"
    half = sum(p.numel() for p in MODELS["gru"][0](0.5).parameters())
    capped = run("gru", [grow(), grow(size="half"), grow(1, size="half")], max_added_parameters=half).epochs(3)
    assert ["not legal" in d.reason for d in capped.grower.log] == [True, False, True]
    assert capped.grower.added_parameters == half
    host = sum(p.numel() for p in MODELS["gru"][0](1.0).parameters())
    assert run("gru", []).grower.max_added_parameters == 15 * host
