"""`GrowthCallback` in a real Lightning `Trainer`; skipped where Lightning is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.columns import JOINED
from tests.support.growth.growing import GROWN, Script, data, mlp

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

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]


def fit(
    module: Module, where: dict[str, Any], actions: Any, folder: Path, epochs: int, resume: str | None = None
) -> Any:
    from actors.growth.lightning import GrowthCallback

    growth = GrowthCallback(num_classes=3, policy=Script(actions), horizon_epochs=8, **where)
    keeper = pl.callbacks.ModelCheckpoint(folder, save_last=True)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[growth, keeper], num_sanity_val_steps=0,
    )  # fmt: skip
    batches = DataLoader(TensorDataset(*data(6)), batch_size=32)
    trainer.fit(module, batches, batches, ckpt_path=resume, weights_only=False)
    return growth.grower


COLUMNS = {"columns": Column(lambda scale: mlp(width=int(12 * scale)), model="net")}


@pytest.mark.parametrize(
    ("where", "actions", "slot"), [({"slots": ["net.3"]}, GROWN, "net.3"), (COLUMNS, JOINED, "column 1")]
)
def test_a_lightning_trainer_grows_and_resumes(where: dict[str, Any], actions: Any, slot: str, tmp_path: Path) -> None:
    whole, alone, first, second = Module(), Module(), Module(), Module()
    grower = fit(whole, where, actions, tmp_path / "whole", 6)
    assert grower.stages[slot] is Stage.HOLDING
    fit(alone, where, [], tmp_path / "alone", 3)
    assert whole.seen[:9] == alone.seen, "a young seed left its host alone"
    fit(first, where, actions, tmp_path / "cut", 4)
    resumed = fit(second, where, actions, tmp_path / "cut2", 6, str(tmp_path / "cut" / "last.ckpt"))
    assert resumed.stages == grower.stages
    own, other = whole.state_dict(), second.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[k], other[k]) for k in own)
