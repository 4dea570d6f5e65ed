"""Means over space: average-pooling, and the mean over all positions; with their gradients."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from actors.env.channels.jit import kernel
from actors.env.channels.tiles import LANES
from actors.env.kernels.vectors import load, splat, store

Array = NDArray[Any]


@kernel
def window_mean(h: Array, y: Array, tall: int, wide: int) -> None:
    """Compute y [C, H / tall, W / wide, M], the means of windows of h [C, H, W, M]; what is left over is dropped."""
    channels, height, width, rows = h.shape
    high, low = height // tall, width // wide
    share = splat(h.dtype.type(1.0 / (tall * wide)))
    for c in range(channels):
        own, out = h[c].reshape(height * width * rows), y[c].reshape(high * low * rows)
        for p in range(high * low):
            source = (p // low * tall * width + p % low * wide) * rows
            for i in range(0, rows, LANES):
                summed = load(own, source + i)
                for k in range(1, tall * wide):
                    summed = summed + load(own, source + i + (k // wide * width + k % wide) * rows)
                store(out, p * rows + i, share * summed)


@kernel
def window_mean_back(d: Array, dh: Array, tall: int, wide: int) -> None:
    """Compute the gradient of h from that of the means, `d`."""
    channels, height, width, rows = dh.shape
    high, low = height // tall, width // wide
    share = splat(d.dtype.type(1.0 / (tall * wide)))
    for c in range(channels):
        flow, out = d[c].reshape(high * low * rows), dh[c].reshape(height * width * rows)
        if high * tall < height or low * wide < width:
            out[:] = 0
        for p in range(high * low):
            target = (p // low * tall * width + p % low * wide) * rows
            for i in range(0, rows, LANES):
                value = share * load(flow, p * rows + i)
                for k in range(tall * wide):
                    store(out, target + i + (k // wide * width + k % wide) * rows, value)
