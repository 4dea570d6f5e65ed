"""`GrowthCallback` in a real Lightning `Trainer`; skipped where Lightning is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.columns import JOINED, assert_equal_tensors
from tests.support.growth.growing import GROWN, WAIT, Script, data, mlp

pl = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.seen: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.seen.append(sum(p.double().sum().item() for n, p in self.net.named_parameters() if "tamiyo" not in n))

    def validation_step(self, batch: Any, index: int) -> None:
        logits = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
        self.log("val_acc", (logits.argmax(-1) == batch[1]).float().mean())

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_acc", (self.net(batch[0]).argmax(-1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]


def batches(size: int = 32) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data(6)), batch_size=size)


def trainer_of(where: dict[str, Any], actions: Any, folder: Path, **options: Any) -> tuple[Any, Any]:
    from actors.growth.lightning import GrowthCallback

    growth = GrowthCallback(num_classes=3, policy=Script(actions), **where)
    keeper = pl.callbacks.ModelCheckpoint(folder, "{epoch}", save_last=True, save_top_k=-1)
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {"callbacks": [growth, keeper], "num_sanity_val_steps": 0}
    return pl.Trainer(**{**settings, **options}), growth


def fit(where: Any, actions: Any, folder: Path, resume: Path | None = None, rows: int = 32, **options: Any) -> Any:
    """Return the trainer, the controller and the model after a training."""
    trainer, growth = trainer_of(where, actions, folder, **options)
    module = Module()
    trainer.fit(module, batches(rows), batches(), ckpt_path=resume and str(resume), weights_only=False)
    return trainer, growth.grower, module


COLUMNS = {"columns": Column(lambda scale: mlp(width=int(12 * scale)), model="net")}


@pytest.mark.parametrize(
    ("where", "actions", "slot"), [({"slots": ["net.3"]}, GROWN, "net.3"), (COLUMNS, JOINED, "column 1")]
)
def test_a_lightning_trainer_grows_and_resumes(where: dict[str, Any], actions: Any, slot: str, tmp_path: Path) -> None:
    """A young seed or column leaves its host alone."""
    where = where | {"horizon_epochs": 8}
    _, grower, whole = fit(where, actions, tmp_path / "whole", max_epochs=6)
    assert grower.stages[slot] is Stage.HOLDING
    assert whole.seen[:9] == fit(where, [], tmp_path / "alone", max_epochs=3)[2].seen
    fit(where, actions, tmp_path / "cut", max_epochs=4)
    _, resumed, second = fit(where, actions, tmp_path / "cut2", tmp_path / "cut" / "last.ckpt", max_epochs=6)
    assert resumed.stages == grower.stages
    assert_equal_tensors(second.state_dict(), whole.state_dict())


def accuracy_of(trainer: Any, module: Module, path: Path) -> float:
    return float(trainer.test(module, batches(), ckpt_path=str(path), verbose=False, weights_only=False)[0]["test_acc"])


def test_any_checkpoint_is_tested_as_it_was_saved(tmp_path: Path) -> None:
    """From before, during and after growth, in the trainer that saved it and in one that has trained nothing."""
    trainer, growth = trainer_of(COLUMNS | {"horizon_epochs": 9}, [WAIT, WAIT, *JOINED], tmp_path, max_epochs=7)
    measured: list[float] = []

    class Measure(pl.Callback):
        def on_validation_end(self, trainer: Any, module: Any) -> None:
            measured.append(float(trainer.callback_metrics["val_acc"]))

    trainer.callbacks.insert(0, Measure())
    module = Module()
    trainer.fit(module, batches(), batches())
    exported = growth.grower.export()
    x = data(6)[0]
    torch.testing.assert_close(exported.net(x), module.net.eval()(x))
    for epoch in (6, 0, 3, 6):
        path = tmp_path / f"epoch={epoch}.ckpt"
        assert accuracy_of(trainer, module, path) == pytest.approx(measured[epoch])
        fresh, callback = trainer_of(COLUMNS, [], tmp_path / "fresh")
        assert accuracy_of(fresh, Module(), path) == pytest.approx(measured[epoch])
        assert (callback.grower.added_parameters > 0) == (epoch >= 3)
        loaded = trainer_of(COLUMNS, [], tmp_path / "fresh")[1].load_from_checkpoint(Module, path)
        correct = (loaded.net.eval()(x).argmax(-1) == data(6)[1]).float().mean()
        assert float(correct) == pytest.approx(measured[epoch])
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"net\..*tamiyo_columns"):
        Module.load_from_checkpoint(path)


def test_checkpoints_without_growth_are_read_and_incomplete_ones_refused(tmp_path: Path) -> None:
    plain = pl.Trainer(max_epochs=1, default_root_dir=tmp_path, logger=False, accelerator="cpu")
    first = Module()
    plain.fit(first, batches(), batches())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    trainer, grower, module = fit(COLUMNS, JOINED, tmp_path / "grown", tmp_path / "plain.ckpt", max_epochs=6)
    assert grower.stages["column 1"] in (Stage.BLENDING, Stage.HOLDING)
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    alone = accuracy_of(pl.Trainer(default_root_dir=tmp_path, logger=False), first, tmp_path / "plain.ckpt")
    assert accuracy_of(trainer, module, tmp_path / "plain.ckpt") == alone
    assert grower.added_parameters == 0
    fresh, growth = trainer_of(COLUMNS, [], tmp_path / "fresh")
    with pytest.raises(UserError, match="leave out save_weights_only"):
        accuracy_of(fresh, Module(), tmp_path / "weights.ckpt")
    with pytest.raises(UserError, match="leave out save_weights_only"):
        growth.load_from_checkpoint(Module, tmp_path / "weights.ckpt")


def test_a_second_fit_continues(tmp_path: Path) -> None:
    trainer, growth = trainer_of(COLUMNS | {"horizon_epochs": 8}, JOINED, tmp_path, max_epochs=4)
    module, x = Module(), data(6)[0]
    trainer.fit(module, batches(), batches())
    before, output = growth.grower.stages, module.net.eval()(x)
    again = pl.Trainer(
        max_epochs=1, limit_train_batches=0, limit_val_batches=0, callbacks=[growth], logger=False,
        enable_progress_bar=False, enable_checkpointing=False, accelerator="cpu",
    )  # fmt: skip
    again.fit(module, batches(), batches())
    assert growth.grower.stages == before
    torch.testing.assert_close(module.net.eval()(x), output)


@pytest.mark.parametrize(
    ("options", "decisions", "horizon"),
    [
        ({"max_epochs": 6, "check_val_every_n_epoch": 2}, 3, 3),
        ({"max_steps": 6, "max_epochs": 9, "accumulate_grad_batches": 2}, 3, 3),
    ],
)
def test_there_is_one_decision_per_validation(
    options: dict[str, Any], decisions: int, horizon: int, tmp_path: Path
) -> None:
    _, grower, _ = fit(COLUMNS, [], tmp_path, **options)
    assert grower.config.horizon_epochs == horizon
    assert len(grower.log) == len({d.loss for d in grower.log}) == decisions
    assert all(loss is not None and 0 < loss < 3 for loss in grower._train_losses)


def test_accumulated_gradients_are_those_of_whole_minibatches(tmp_path: Path) -> None:
    """Of a column too, which sees each part of them, and so is the training compute."""
    grown = []
    for parts in (1, 2):
        options = {"max_epochs": 6, "accumulate_grad_batches": parts}
        _, grower, module = fit(COLUMNS, JOINED, tmp_path, rows=32 // parts, **options)
        assert grower.stages["column 1"] is Stage.HOLDING
        grown.append((module.state_dict(), grower._growth.compute.spent))
    (whole, spent), (in_parts, spent_in_parts) = grown
    assert all(torch.allclose(whole[name], in_parts[name], rtol=1e-3, atol=1e-4) for name in whole)
    # FLOPs are counted in two passes through a minibatch: of 32 rows, or of 16.
    assert spent - spent_in_parts == pytest.approx((2 / 3 - 2 / 6) / 3)


def test_without_an_end_a_horizon_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"give GrowthCallback\(horizon_epochs=\.\.\.\)"):
        fit(COLUMNS, [], tmp_path, max_epochs=-1)


def test_lightning_clips_the_model_as_if_it_were_alone(tmp_path: Path) -> None:
    options = {"max_epochs": 3, "gradient_clip_val": 0.01}
    own, alone = (fit(COLUMNS, actions, tmp_path, **options)[2].seen for actions in (JOINED, []))
    assert own[:9] == alone


@pytest.mark.parametrize("named", [{"metric": "val_loss"}, {}])
def test_a_metric_takes_the_place_of_accuracy(named: dict[str, str], tmp_path: Path) -> None:
    _, grower, _ = fit(COLUMNS | named | {"higher_is_better": False}, [], tmp_path, max_epochs=3)
    first, *_, last = grower.log
    assert first.accuracy == 0.0
    assert last.accuracy == pytest.approx(100 * (1 - last.loss / first.loss))
