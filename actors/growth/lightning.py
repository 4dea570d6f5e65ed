"""`GrowthCallback`: a `GrowthController` in a Lightning `Trainer` (extra `lightning`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from actors.config import require
from actors.errors import UserError
from actors.growth.controller import GrowthController
from actors.growth.slots import SlotSpec

try:
    import lightning.pytorch as pl
except ImportError as error:
    raise UserError("GrowthCallback needs Lightning: pip install 'tamiyo[lightning]'") from error


class GrowthCallback(pl.Callback):  # type: ignore[misc,unused-ignore]
    """Grow a Lightning module while it trains.

        columns = Column(lambda scale: Net(int(16 * scale)), model="net")  # the module that training_step calls
        Trainer(max_epochs=20, callbacks=[GrowthCallback(["net.block1"], columns=columns, num_classes=10)])

    `loss` and `accuracy` name metrics that validation logs. A seed in TRAINING learns by a second call of
    `training_step`, whose logs are discarded; where that must not run twice, give `shadow_loss(module, batch)`. Further
    `options` are the fields of `GrowthConfig`; the horizon defaults to `max_epochs`. The grown topology is saved in
    checkpoints and restored from them.
    """

    def __init__(
        self,
        slots: Mapping[str, SlotSpec] | Sequence[str] = (),
        *,
        loss: str = "val_loss",
        accuracy: str | None = "val_acc",
        shadow_loss: Callable[[Any, Any], Tensor] | None = None,
        **options: Any,
    ) -> None:
        self.slots, self.loss, self.accuracy = slots, loss, accuracy
        self.shadow_loss, self.options = shadow_loss, options
        self.grower: GrowthController | None = None
        self._batch: tuple[Any, int] = (None, 0)
        self._restored: Mapping[str, Any] | None = None  # a checkpoint whose seeds have yet to be created

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.strict_loading = False  # seeds are loaded later, once their modules exist

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]) -> None:
        self._restored = checkpoint

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.grower is not None:
            checkpoint["tamiyo"] = self.grower.state_dict()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        require(
            len(trainer.optimizers) == 1,
            f"the module has {len(trainer.optimizers)} optimizers: growing needs exactly one",
        )
        options = {"horizon_epochs": trainer.max_epochs} | self.options
        self.grower = GrowthController(trainer.model, self.slots, trainer.optimizers[0], **options)
        if self._restored is not None and "tamiyo" in self._restored:
            self.grower.load_state_dict(self._restored["tamiyo"])
            pl_module.load_state_dict(self._restored["state_dict"])
        self._restored = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._batch = (batch, batch_idx)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Train young seeds. Gradients are already unscaled here; Lightning clips them afterwards."""
        assert self.grower is not None
        batch, index = self._batch

        def loss() -> Tensor:
            with trainer.precision_plugin.train_step_context(), _unlogged(pl_module):
                if self.shadow_loss is not None:
                    return self.shadow_loss(pl_module, batch)
                given = pl_module.training_step(batch, index)
            found: Tensor = given["loss"] if isinstance(given, Mapping) else given
            return found

        self.grower.shadow(loss)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        assert self.grower is not None
        logged = trainer.callback_metrics
        require(
            self.loss in logged,
            f"validation logs no metric {self.loss!r}, only {', '.join(logged)}: name the loss by loss=...",
        )
        self.grower.step(logged[self.loss], logged.get(self.accuracy) if self.accuracy is not None else None)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.grower is not None:
            self.grower.close()


@contextmanager
def _unlogged(module: Any) -> Iterator[None]:
    module.log = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del module.log
