"""`GrowthCallback`: a `GrowthController` in a Lightning `Trainer` (extra `lightning`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, inf, isfinite
from typing import Any

import torch
from torch import Tensor

from actors.config import require
from actors.errors import UserError
from actors.growth.controller import GrowthController
from actors.growth.slot_module import CHILD
from actors.growth.slots import SlotSpec

try:
    import lightning.pytorch as pl
except ImportError as error:
    raise UserError("GrowthCallback needs Lightning: pip install 'tamiyo[lightning]'") from error

HOMELESS = "the checkpoint has grown parameters, but not where they grew: leave out save_weights_only"


class GrowthCallback(pl.Callback):  # type: ignore[misc,unused-ignore]
    """Grow a Lightning module while it trains.

        columns = Column(lambda scale: Net(int(16 * scale)), model="net")  # the module that training_step calls
        Trainer(max_epochs=20, callbacks=[GrowthCallback(["net.block1"], columns=columns, num_classes=10)])

    `loss` and `accuracy` name metrics that validation logs. A seed in TRAINING learns by a second call of
    `training_step`, whose logs are discarded; where that must not run twice, as with manual optimization, give
    `shadow_loss(module, batch)`. Further `options` are the fields of `GrowthConfig`. There is one decision per epoch
    with validation, and the horizon defaults to their number. The grown topology is saved in checkpoints and restored
    from them, also by `validate`, `test` and `predict` with a `ckpt_path`, in any process whose trainer has this
    callback, and by its own `load_from_checkpoint`.
    """

    def __init__(
        self,
        slots: Mapping[str, SlotSpec] | Sequence[str] = (),
        *,
        loss: str = "val_loss",
        accuracy: str | None = "val_acc",
        metric: str | None = None,
        shadow_loss: Callable[[Any, Any], Tensor] | None = None,
        **options: Any,
    ) -> None:
        """`loss`, `accuracy` and `metric` name what validation logs. With `higher_is_better`, it takes the place
        of accuracy; without its name, where lower is better, the loss does."""
        self.slots, self.loss, self.metric = slots, loss, metric
        self.accuracy = accuracy if options.get("higher_is_better") is None else None
        self.shadow_loss, self.options = shadow_loss, options
        self.grower: GrowthController | None = None
        self._batch: tuple[Any, int] | None = None  # of which young seeds have not learned yet
        self._restored: Mapping[str, Any] | None = None  # a checkpoint whose seeds have yet to be created
        self._strict = True
        self._validated = False  # since the last epoch that training ended
        self._train_loss, self._batches = torch.zeros(()), 0  # summed over the minibatches since the last decision

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._strict, pl_module.strict_loading = pl_module.strict_loading, False  # seeds are loaded later
        self._homeless, self._loading = False, pl_module.register_load_state_dict_pre_hook(self._look_for_seeds)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.strict_loading = self._strict
        self._loading.remove()

    def _look_for_seeds(self, module: Any, parameters: Mapping[str, Any], *_: Any) -> None:
        """Find out whether parameters of seeds are loaded that the module does not have."""
        self._homeless = bool(_grown(parameters) - module.state_dict().keys())

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Raise `UserError` if such parameters were loaded. Lightning tells callbacks nothing of such a checkpoint."""
        require(not self._homeless, HOMELESS)

    on_test_start = on_predict_start = on_validation_start

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]) -> None:
        self._restored = checkpoint
        if trainer.state.fn != "fit":
            self._look_at(pl_module)

    def load_from_checkpoint(self, kind: Any, path: Any, **options: Any) -> Any:
        """Return what `kind.load_from_checkpoint(path, **options)` does, with what had grown. Raises `UserError`."""
        module = kind.load_from_checkpoint(path, **options, strict=False)
        given = torch.load(path, map_location=module.device, weights_only=True)
        require("tamiyo" in given or not _grown(given["state_dict"]), HOMELESS)
        self._restored = given
        self._look_at(module)
        return module

    def _look_at(self, pl_module: Any) -> None:
        """Restore a module that no optimizer trains."""
        if self.grower is None:
            options = {**self.options, "horizon_epochs": 1, "policy": "never", "log_file": None}
            optimizer = torch.optim.SGD(pl_module.parameters(), lr=0.0)
            self.grower = GrowthController(pl_module, self.slots, optimizer, **options)
        self._restore(pl_module)

    def _restore(self, pl_module: Any) -> None:
        """Give the module the seeds and the parameters of the checkpoint. Raises `UserError`."""
        assert self.grower is not None
        if self._restored is None:
            return
        grown = self._restored.get("tamiyo")
        self.grower.load_state_dict(grown if grown is not None else self.grower.bare_state_dict())
        pl_module.load_state_dict(self._restored["state_dict"], strict=self._strict)
        self._restored = None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.grower is not None:
            checkpoint["tamiyo"] = self.grower.state_dict()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        require(
            len(trainer.optimizers) == 1,
            f"the module has {len(trainer.optimizers)} optimizers: growing needs exactly one",
        )
        require(
            pl_module.automatic_optimization or self.shadow_loss is not None,
            "with manual optimization, training_step cannot run a second time: give shadow_loss(module, batch)",
        )
        options = {"horizon_epochs": _validations(trainer)} | self.options
        if self.grower is not None:  # a second call of `fit` continues
            here = {"tamiyo": self.grower.state_dict(), "state_dict": pl_module.state_dict()}
            self._restored = self._restored or here
            self.grower.load_state_dict(self.grower.bare_state_dict())
        self.grower = GrowthController(trainer.model, self.slots, trainer.optimizers[0], **options)
        self._restore(pl_module)
        self.on_validation_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._batch = (batch, batch_idx)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):  # Lightning has divided it by the number of accumulated batches
            loss = loss.detach() * trainer.accumulate_grad_batches
            self._train_loss, self._batches = self._train_loss.to(loss.device) + loss, self._batches + 1

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._validated = not trainer.sanity_checking

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Train young seeds on each minibatch, as the module."""
        if self.grower is None or self._batch is None:
            return
        (batch, index), self._batch = self._batch, None
        shadow_loss = self.shadow_loss or (lambda module, batch: module.training_step(batch, index))

        def loss() -> Tensor:
            with trainer.precision_plugin.train_step_context(), _unlogged(pl_module):
                given: Any = shadow_loss(pl_module, batch)
            found: Tensor = (given["loss"] if isinstance(given, Mapping) else given) / trainer.accumulate_grad_batches
            return found

        self.grower.shadow(loss, getattr(trainer.precision_plugin, "scaler", None))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        assert self.grower is not None
        if not self._validated:
            return
        self._validated = False
        logged = trainer.callback_metrics
        for role, name in (("loss", self.loss), ("metric", self.metric)):
            require(
                name is None or name in logged,
                f"validation logs no {name!r}, only {', '.join(logged) or 'nothing'}: name the {role} by {role}=...",
            )
        accuracy, metric = (logged.get(name) if name is not None else None for name in (self.accuracy, self.metric))
        train_loss = self._train_loss / self._batches if self._batches else None
        self._train_loss, self._batches = torch.zeros(()), 0
        self.grower.step(logged[self.loss], accuracy, train_loss, metric)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.grower is not None:
            self.grower.close()


def _grown(parameters: Iterable[str]) -> set[str]:
    return {name for name in parameters if f".{CHILD}" in f".{name}"}


def _validations(trainer: Any) -> int:
    """Return how many epochs with validation the trainer is going to have. Raises `UserError` if that is unknown."""
    epochs = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs > 0 else inf
    if trainer.max_steps > 0:
        trainer.fit_loop.setup_data()
        if isfinite(trainer.num_training_batches):
            steps = ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
            epochs = min(epochs, ceil(trainer.max_steps / steps))
    require(
        isfinite(epochs),
        "the trainer has neither max_epochs nor a known number of steps: give GrowthCallback(horizon_epochs=...)",
    )
    return max(1, int(epochs) // (trainer.check_val_every_n_epoch or 1))


@contextmanager
def _unlogged(module: Any) -> Iterator[None]:
    module.log = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del module.log
