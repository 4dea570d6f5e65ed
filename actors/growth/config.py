"""`GrowthConfig`: how a `GrowthController` grows a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from actors.config import require
from actors.growth.columns.column import Column
from actors.sessions.session import SessionOpener
from actors.slots.lifecycle import SeedAction

_LEAST = {"num_classes": 2, "points_per_doubling": 0, "points_per_compute_doubling": 0} | dict.fromkeys(
    ("horizon_epochs", "evaluate_every", "train_rows", "val_rows", "max_added_parameters", "max_isolated_parameters"), 1
)


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """Settings of a `GrowthController`. Raises `UserError` for a value that is out of range."""

    horizon_epochs: int
    """Epochs that the model is trained for. The policy sees it; after it nothing is changed any more."""
    columns: Column | None = None
    """Networks of the model's own architecture that may grow beside it; see `Column`."""
    points_per_doubling: float = 1.0
    """Price of growing: the points of accuracy (percent) that a doubling of the parameters of the model that is kept
    must be worth."""
    points_per_compute_doubling: float = 0.0
    """Price of compute: the points of accuracy that a doubling of the FLOPs of the whole training must be worth."""
    policy: SessionOpener | str | Path | None = None
    """What decides: the name of a rule such as `trial:double@0-2`, a client, a `LocalPolicy`, the path of a
    checkpoint, or the address of a server as host:port. None means what the environment variable TAMIYO_POLICY names
    or, without it, the rule `trial:quad+double@0-2,alpha=0.7`; without `evaluate` `fixed-column:double@3`, without
    columns `periodic`."""
    num_classes: int | None = None
    """Classes of a classification task; None for other tasks."""
    train_rows: int | None = None
    """Rows of the training data, to count the compute of evaluations; None if unknown."""
    val_rows: int | None = None
    """Rows of the validation data; None if unknown."""
    evaluate: Callable[[], float] | None = None
    """Returns the validation accuracy, 0 to 1, of the model in its current state. It is called once per combination
    of seeds whenever contributions are measured, see `evaluate_every`. Without it, they are unknown."""
    higher_is_better: bool | None = None
    """For a metric other than accuracy: whether a higher value is better. `step` then takes `metric=` and `evaluate`
    returns it. A point is a percent of the distance between the metric's first value and `best_metric`. None means that
    accuracy is given, or nothing. With False, the loss is the metric where none is given."""
    best_metric: float | None = None
    """Best possible value of that metric. None means 1 where higher is better and 0 where lower is."""
    calibrate: Callable[[], object] | None = None
    """A few forward passes in training mode. Models with BatchNorm need it beside `evaluate`."""
    evaluate_every: int | None = None
    """Epochs between two measurements of contributions. None measures them when the policy reads them: for a trial rule
    from the epoch on in which it decides or may surrender, for others always."""
    max_added_parameters: int | None = None
    """Most parameters that seeds which joined may add to the model. None means 16 times the model's own, frozen ones
    included: a column of four times the width has that many."""
    max_isolated_parameters: int | None = None
    """Most parameters of seeds that have not joined the model. None means 1.5 times `max_added_parameters`."""
    deterministic: bool = True
    """Take the policy's median decisions (see `PolicySession.step`) instead of samples."""
    seed: int = 0
    """Seeds the parameters of what grows, and the policy's samples."""
    dry_run: bool = False
    """Log decisions without applying them."""
    veto: Callable[[SeedAction], bool] | None = None
    """Returns True for an action that must not be applied."""
    log_file: str | Path | None = None
    """Decisions are appended to this file as JSON lines. None means the environment variable TAMIYO_GROWTH_LOG."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            require(value is None or value >= least, f"{name} is {value}: it must be at least {least}")
        best = self.best_metric
        require(best is None or self.higher_is_better is not None, "best_metric was given: set higher_is_better too")
