"""Minibatches with rows of data innermost; and average-pooling, with its gradient."""

from __future__ import annotations

from actors.kernels.cnn.tiles import LANES
from actors.kernels.decorators import Array, kernel
from actors.kernels.vectors import load, splat, store

BLOCK = 64
"""Numbers of a row that are copied together: those of four lines of the cache."""


@kernel
def gather_rows(data: Array, rows: Array, x: Array) -> None:
    """Copy rows `[S, E, M]` of data [E, N, P] to x [S, E, P, M]."""
    steps, envs, count = rows.shape
    size = data.shape[2]
    for s in range(steps):
        for e in range(envs):
            for first in range(0, size, BLOCK):
                last = min(size, first + BLOCK)
                for m in range(count):
                    row = rows[s, e, m]
                    for p in range(first, last):
                        x[s, e, p, m] = data[e, row, p]


@kernel
def window_mean(h: Array, y: Array, tall: int, wide: int) -> None:
    """Compute y [C, H / tall, W / wide, M], the means of windows of h [C, H, W, M], 1x2 or 2x2.

    What is left over at the end is dropped.
    """
    channels, height, width, rows = h.shape
    high, low = height // tall, width // wide
    share = splat(h.dtype.type(1.0 / (tall * wide)))
    for c in range(channels):
        channel, out = h[c].reshape(height * width * rows), y[c].reshape(high * low * rows)
        for top in range(high):
            for left in range(low):
                source, target = (top * tall * width + left * wide) * rows, (top * low + left) * rows
                for i in range(0, rows, LANES):
                    summed = load(channel, source + i) + load(channel, source + i + rows)
                    if tall == 2:
                        summed = summed + load(channel, source + i + width * rows)
                        summed = summed + load(channel, source + i + (width + 1) * rows)
                    store(out, target + i, share * summed)


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
        for top in range(high):
            for left in range(low):
                source, target = (top * low + left) * rows, (top * tall * width + left * wide) * rows
                for i in range(0, rows, LANES):
                    value = share * load(flow, source + i)
                    for down in range(tall):
                        for right in range(wide):
                            store(out, target + i + (down * width + right) * rows, value)
