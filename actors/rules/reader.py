"""`ObservationReader`: the features of a flat observation, by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from actors.slots.model_view import Feature
from actors.slots.observation import BASE, BLIND_EPOCHS, SLOT
from actors.types.spaces import Spaces


class ObservationReader:
    """Reads features of flat observations `[N, D]` by their names in the tables `BASE` and `SLOT`."""

    def __init__(self, spaces: Spaces) -> None:
        self._base, self._slot = _columns(BASE), _columns(SLOT)
        self._spaces = spaces

    def base(self, obs: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """Return a feature of the whole model, `[N, size]`."""
        return obs[:, self._base[name]]

    def slot(self, obs: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """Return a feature of every slot, `[N, S, size]`."""
        s = self._spaces
        return obs[:, s.base_size :].reshape(len(obs), s.slots, s.slot_size)[:, :, self._slot[name]]

    def relative_loss(self, obs: NDArray[np.float32], name: str) -> NDArray[np.float64]:
        """Return the newest loss `[N]`, relative to that of the uniform guess; `name` is loss or train_loss."""
        return np.expm1(self.base(obs, name)[:, 0].astype(np.float64))

    def price(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the price of growth `[N]`, in points per doubling of the parameters."""
        scaled = self.base(obs, "price")[:, 0].astype(np.float64)
        return np.where(scaled > -1.0, 2.0 ** (8.0 * scaled), 0.0)

    def compute_price(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the price of compute `[N]`, in points per doubling of the training FLOPs."""
        priced, scaled = self.base(obs, "compute_price").astype(np.float64).T
        return np.where(priced > 0, 2.0 ** (8.0 * scaled), 0.0)

    def sizes(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return by how many doublings every seed enlarges the model, or would if it joined, `[N, S]`."""
        return 4.0 * self.slot(obs, "size")[:, :, 0].astype(np.float64)

    def points(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the contribution of every seed in points, `[N, S]`; NaN where it is unknown."""
        known, scaled = np.moveaxis(self.slot(obs, "contribution").astype(np.float64), -1, 0)
        return np.where(known > 0, np.sign(scaled) * np.expm1(np.abs(scaled) * np.log(101.0)), np.nan)

    def horizon_epochs(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the number of epochs of the whole training, `[N]`; 0 if time is hidden."""
        scaled = self.base(obs, "horizon")[:, 0].astype(np.float64)
        return np.where(scaled > 0, np.round(2.0 ** (16.0 * scaled)), 0.0)

    def epochs_in_stage(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return for how many epochs every slot has been in its stage, `[N, S]`; at most 4 if time is hidden."""
        horizon = self.horizon_epochs(obs)[:, None]
        return np.round(self.slot(obs, "epochs_in_stage")[:, :, 0] * np.where(horizon > 0, horizon, BLIND_EPOCHS), 3)


def _columns(features: Sequence[Feature]) -> dict[str, slice]:
    ends = accumulate(feature.size for feature in features)
    return {feature.name: slice(end - feature.size, end) for feature, end in zip(features, ends, strict=True)}
