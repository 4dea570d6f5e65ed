"""BatchNorm with what follows it, max-pooling and ReLU, in one pass over each channel; and its gradients.

`h [C, H, W, M]` has the channels of all environments; the output is `[C, H / tall, W / wide, M]`, where `tall` and
`wide` are the window of the pooling: 1x1 for none, 1x2 or 2x2. A last odd line or column is dropped. Rows of data
may be V groups of M / V rows, each with its own statistics.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.kernels.cnn.convolution import live_channels
from actors.kernels.cnn.tiles import LANES
from actors.kernels.decorators import Array, kernel
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.vectors import fma, load, maximum, rectified, splat, store, total, where_at_least, where_positive

Size = tuple[int, int, int, int, int]
"""Height, width, rows of data, and the window."""


@inner
def moments(h: Array, positions: int, rows: int, first: int, count: int) -> tuple[Any, Any]:
    """Return mean and variance of a channel h [P, M], a vector, over `count` rows of data from `first`."""
    size = h.dtype.type(positions * count)
    zero = splat(h.dtype.type(0))
    sums = zero
    for p in range(positions):
        part = zero  # short sums first: they round less
        for i in range(p * rows + first, p * rows + first + count, LANES):
            part = part + load(h, i)
        sums = sums + part
    mean = total(sums) / size
    center, squares = splat(mean), zero
    for p in range(positions):
        part = zero
        for i in range(p * rows + first, p * rows + first + count, LANES):
            off = load(h, i) - center
            part = fma(off, off, part)
        squares = squares + part
    return mean, total(squares) / size


@inner
def pooled(h: Array, at: int, row: int, rows: int, tall: int, wide: int, scale: Any, shift: Any) -> Any:
    """Return the largest normalized value of a window whose first vector is h[at:]; lines are `row` apart."""
    best = fma(scale, load(h, at), shift)
    if wide == 2:
        best = maximum(best, fma(scale, load(h, at + rows), shift))
        if tall == 2:
            best = maximum(best, fma(scale, load(h, at + row), shift))
            best = maximum(best, fma(scale, load(h, at + row + rows), shift))
    return best


@inner
def route(h: Array, at: int, out: Array, scale: Any, shift: Any, center: Any, best: Any, rest: Any, along: Any) -> Any:
    """Write the part of a gradient that the value at h[at:] gets, if it is the largest, `best`; return what is left of
    the gradient, and the sum `along` with the products of that part and the distance from the center."""
    x = load(h, at)
    taken = where_at_least(fma(scale, x, shift), best, rest)
    store(out, at, taken)
    return rest - taken, fma(taken, x - center, along)


@inner
def rescale_channel(
    h: Array, y: Array, size: Size, first: int, count: int, scale: float, shift: float, relu: bool
) -> None:
    """Write y [H / tall, W / wide, M] of one channel and `count` rows of data; size is (H, W, M, tall, wide)."""
    height, width, rows, tall, wide = size
    high, low = height // tall, width // wide
    a, b = splat(scale), splat(shift)
    if tall * wide == 1:
        for p in range(height * width):
            for i in range(p * rows + first, p * rows + first + count, LANES):
                value = fma(a, load(h, i), b)
                store(y, i, rectified(value) if relu else value)
        return
    for top in range(high):
        for left in range(low):
            source = ((top * tall) * width + left * wide) * rows
            target = (top * low + left) * rows
            for i in range(first, first + count, LANES):
                value = pooled(h, source + i, width * rows, rows, tall, wide, a, b)
                store(y, target + i, rectified(value) if relu else value)


@kernel
def normalize(
    h: Array, gain: Array, bias: Array, y: Array, mean: Array, inverse: Array, running_mean: Array, running_var: Array,
    tall: int, wide: int, relu: bool, momentum: float, eps: float,
) -> None:  # fmt: skip
    """Normalize by the statistics of the batch, written to `mean` and `inverse [C]` (1 / standard deviation; 0 for a
    channel that a stack pads).

    Update the running statistics `[C]`, if they are not empty.
    """
    channels, height, width, rows = h.shape
    area = height * width
    size = (height, width, rows, tall, wide)
    for c in range(channels):
        channel, out = h[c].reshape(area * rows), y[c].reshape(y.shape[1] * y.shape[2] * rows)
        padded = gain[c] == 0 and bias[c] == 0 and live_channels(channel, 1, area * rows) == 0
        m, v = (gain[c], gain[c]) if padded else moments(channel, area, rows, 0, rows)
        mean[c], inverse[c] = m, 0 if padded else 1 / np.sqrt(v + eps)
        if running_mean.size:
            n = area * rows
            unbiased = v * n / max(1, n - 1)
            running_mean[c] += momentum * (m - running_mean[c])
            running_var[c] += momentum * (unbiased - running_var[c])
        if padded:
            out[:] = 0
            continue
        scale = gain[c] * inverse[c]
        rescale_channel(channel, out, size, 0, rows, scale, bias[c] - mean[c] * scale, relu)


@kernel
def normalize_back(
    h: Array, d: Array, gain: Array, bias: Array, mean: Array, inverse: Array, dh: Array, dgain: Array, dbias: Array,
    tall: int, wide: int, relu: bool,
) -> None:  # fmt: skip
    """Compute the gradients of h, gain and bias from that of y, `d`."""
    channels, height, width, rows = h.shape
    high, low, area = height // tall, width // wide, height * width
    zero = splat(h.dtype.type(0))
    for c in range(channels):
        channel, flow, out = h[c].reshape(area * rows), d[c].reshape(high * low * rows), dh[c].reshape(area * rows)
        if inverse[c] == 0:
            out[:], dgain[c], dbias[c] = 0, 0, flow.sum()
            continue
        scale = gain[c] * inverse[c]
        a, b, m, row = splat(scale), splat(bias[c] - mean[c] * scale), splat(mean[c]), width * rows
        summed, along = zero, zero
        if high * tall < height or low * wide < width:
            out[:] = 0
        for top in range(high):
            for left in range(low):
                source, target = ((top * tall) * width + left * wide) * rows, (top * low + left) * rows
                for i in range(0, rows, LANES):
                    best, rest = pooled(channel, source + i, row, rows, tall, wide, a, b), load(flow, target + i)
                    if relu:
                        rest = where_positive(best, rest)
                    summed = summed + rest
                    at = source + i
                    if wide == 1:
                        store(out, at, rest)
                        along = fma(rest, load(channel, at) - m, along)
                    else:
                        rest, along = route(channel, at, out, a, b, m, best, rest, along)
                        rest, along = route(channel, at + rows, out, a, b, m, best, rest, along)
                        if tall == 2:
                            rest, along = route(channel, at + row, out, a, b, m, best, rest, along)
                            rest, along = route(channel, at + row + rows, out, a, b, m, best, rest, along)
        dbias[c], dgain[c] = total(summed), total(along) * inverse[c]
        n = h.dtype.type(area * rows)
        slope = scale * inverse[c] * dgain[c] / n
        steep, offset = splat(-slope), splat(mean[c] * slope - scale * dbias[c] / n)
        for i in range(0, area * rows, LANES):
            store(out, i, fma(a, load(out, i), fma(steep, load(channel, i), offset)))


@kernel
def rescale(h: Array, scale: Array, shift: Array, y: Array, tall: int, wide: int, relu: bool) -> None:
    """Normalize with a given scale and shift `[C, V]`."""
    channels, height, width, rows = h.shape
    count = rows // scale.shape[1]
    size = (height, width, rows, tall, wide)
    for c in range(channels):
        channel, out = h[c].reshape(height * width * rows), y[c].reshape(y.shape[1] * y.shape[2] * rows)
        for v in range(scale.shape[1]):
            rescale_channel(channel, out, size, v * count, count, scale[c, v], shift[c, v], relu)


@kernel
def calibrate(h: Array, gain: Array, bias: Array, scale: Array, shift: Array, eps: float) -> None:
    """Write the scale and shift `[C, V]` that normalize h by its statistics, for each of V groups of rows of data."""
    channels, height, width, rows = h.shape
    count = rows // scale.shape[1]
    for c in range(channels):
        channel = h[c].reshape(height * width * rows)
        for v in range(scale.shape[1]):
            mean, var = moments(channel, height * width, rows, v * count, count)
            scale[c, v] = gain[c] / np.sqrt(var + eps)
            shift[c, v] = bias[c] - mean * scale[c, v]
