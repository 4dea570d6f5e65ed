"""The average-pooling of sequences, and its gradient."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from actors.kernels.cnn.tiles import LANES
from actors.kernels.decorators import kernel
from actors.kernels.vectors import load, splat, store

Array = NDArray[Any]


@kernel
def pair_mean(h: Array, y: Array) -> None:
    """Compute y [C, L / 2, M], the means of neighbours in h [C, L, M]; a last odd position is dropped."""
    channels, length, rows = h.shape
    half = splat(h.dtype.type(0.5))
    for c in range(channels):
        own, out = h[c].reshape(length * rows), y[c].reshape(length // 2 * rows)
        for p in range(0, length // 2 * rows, rows):
            for i in range(0, rows, LANES):
                store(out, p + i, half * (load(own, 2 * p + i) + load(own, 2 * p + rows + i)))


@kernel
def pair_mean_back(d: Array, dh: Array) -> None:
    """Compute the gradient of h from that of the means, `d`."""
    channels, length, rows = dh.shape
    half = splat(d.dtype.type(0.5))
    for c in range(channels):
        flow, out = d[c].reshape(length // 2 * rows), dh[c].reshape(length * rows)
        out[length // 2 * 2 * rows :] = 0
        for p in range(0, length // 2 * rows, rows):
            for i in range(0, rows, LANES):
                value = half * load(flow, p + i)
                store(out, 2 * p + i, value)
                store(out, 2 * p + rows + i, value)
