"""The end of a host: a global mean and a linear layer; and the loss of its logits.

Logits are `[E, classes, M]`, with rows of data innermost.
"""

from __future__ import annotations

from actors.kernels.cnn.tiles import LANES
from actors.kernels.cross_entropy import cross_entropy
from actors.kernels.decorators import Array, kernel
from actors.kernels.vectors import fma, load, splat, store, total


@kernel
def classify(h: Array, w: Array, b: Array, mean: Array, y: Array) -> None:
    """Compute y [E, K, M], from h [E, C, P, M], w [E, C, K] and b [E, K]; `mean` [E, C, M] is that over positions."""
    envs, channels, positions, rows = h.shape
    classes = w.shape[2]
    share = splat(h.dtype.type(1.0 / positions))
    for e in range(envs):
        for c in range(channels):
            channel, out = h[e, c].reshape(positions * rows), mean[e, c]
            for i in range(0, rows, LANES):
                summed = load(channel, i)
                for p in range(1, positions):
                    summed = summed + load(channel, p * rows + i)
                store(out, i, share * summed)
        for k in range(classes):
            out = y[e, k]
            for i in range(0, rows, LANES):
                summed = splat(b[e, k])
                for c in range(channels):
                    summed = fma(splat(w[e, c, k]), load(mean[e, c], i), summed)
                store(out, i, summed)


@kernel
def classify_back(mean: Array, w: Array, d: Array, dh: Array, dw: Array, db: Array) -> None:
    """Compute the gradients of h, w and b from that of y, `d`."""
    envs, channels, positions, rows = dh.shape
    classes = w.shape[2]
    zero, share = splat(mean.dtype.type(0)), splat(mean.dtype.type(1.0 / positions))
    for e in range(envs):
        for k in range(classes):
            summed = zero
            for i in range(0, rows, LANES):
                summed = summed + load(d[e, k], i)
            db[e, k] = total(summed)
        for c in range(channels):
            means, out = mean[e, c], dh[e, c].reshape(positions * rows)
            for k in range(classes):
                along = zero
                for i in range(0, rows, LANES):
                    along = fma(load(d[e, k], i), load(means, i), along)
                dw[e, c, k] = total(along)
            for i in range(0, rows, LANES):
                flow = zero
                for k in range(classes):
                    flow = fma(splat(w[e, c, k]), load(d[e, k], i), flow)
                flow = share * flow
                for p in range(positions):
                    store(out, p * rows + i, flow)


@kernel
def losses(logits: Array, labels: Array, counts: Array, loss: Array, by_row: Array) -> None:
    """Compute the mean cross-entropy of each environment, of `labels [E, M]` among its own first `counts [E]` classes.

    Replace the logits by its gradient. Overwrite `by_row [2, M]`.
    """
    for e in range(logits.shape[0]):
        loss[e] = cross_entropy(logits[e, : counts[e]], labels[e], by_row[0], by_row[1])
        logits[e, counts[e] :] = 0
