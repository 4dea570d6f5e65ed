"""`GainModel`: a regression of what columns gain on what is observed early, and the features that it reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from actors.blueprints.family import blueprint_index
from actors.rules.reader import ObservationReader
from actors.rules.schedule import Schedule, fixed_column
from actors.slots.slot_shape import SlotKind

COEFFICIENTS = "chooser.json"
CLIP = 4.0  # standard deviations
LOOK = 3
"""The epoch after which a chooser decides, so that it has seen three epochs of training."""
ARRAYS = ("mean", "spread", "weights", "intercept")


@dataclass(frozen=True)
class ColumnChoice:
    """One of the rules that the chooser chooses from."""

    size: str
    epoch: int
    """Counted back from the end of the training if negative."""
    columns: int = 1

    @property
    def schedule(self) -> Schedule:
        return fixed_column(blueprint_index(f"column_{self.size}"), self.epoch, self.columns)


@dataclass(frozen=True)
class GainModel:
    """What each choice gains over never growing, in points of accuracy: linear in features and their squares."""

    choices: tuple[ColumnChoice, ...]
    mean: NDArray[np.float64]  # [F]
    spread: NDArray[np.float64]  # [F]
    weights: NDArray[np.float64]  # [2 F, choices]
    intercept: NDArray[np.float64]  # [choices]

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected gain `[N, choices]` for `features [N, F]`; NaN features count as average."""
        z = np.nan_to_num((features - self.mean) / self.spread).clip(-CLIP, CLIP)
        gains: NDArray[np.float64] = np.concatenate([z, z**2], 1) @ self.weights + self.intercept
        return gains


@cache
def packaged_gains() -> GainModel:
    """Return the model that comes with the package, fitted to the training families (docs/rules.md)."""
    data = json.loads(files("actors.rules").joinpath(COEFFICIENTS).read_text(encoding="utf-8"))
    arrays = (np.array(data[k], dtype=np.float64) for k in ARRAYS)
    return GainModel(tuple(ColumnChoice(*choice) for choice in data["choices"]), *arrays)


def early_features(reader: ObservationReader, obs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what the regression reads of observations `[N, D]`: `[N, F]`, NaN where something is unknown."""

    def column(values: NDArray[np.float32], known: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
        wide = values.astype(np.float64).reshape(len(obs), -1)
        return wide if known is None else np.where(known.reshape(len(obs), -1) > 0, wide, np.nan)

    def base(name: str) -> NDArray[np.float64]:
        return column(reader.base(obs, name))

    loss, accuracy = base("loss"), column(reader.base(obs, "accuracy"), reader.base(obs, "accuracy_known"))
    train = column(reader.base(obs, "train_loss"), reader.base(obs, "train_loss_known"))
    scores = reader.slot(obs, "score")
    score = np.where(scores[:, :, 0] > 0, scores[:, :, 1], np.nan)
    in_stream = reader.slot(obs, "kind")[:, :, SlotKind.STREAM] > 0
    best = [np.where(mask, score, -np.inf).max(1) for mask in (in_stream, ~in_stream)]
    best = [np.where(np.isfinite(b), b, np.nan) for b in best]
    return np.concatenate(
        [loss[:, :LOOK], accuracy[:, :LOOK], train[:, :LOOK], accuracy[:, :1] - accuracy[:, LOOK - 1 : LOOK],
         train[:, :1] - loss[:, :1], base("chance"), base("horizon"), *(b[:, None] for b in best)],
        axis=1,
    )  # fmt: skip
