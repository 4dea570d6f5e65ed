"""Convolution with same padding, and its gradients, for every environment by itself.

`x [E, G * I, H, W, M]`, `w [E, G * O, I, TH, TW]`, `y [E, G * O, H, W, M]`, where G groups of channels are convolved
apart. Channels at the end that are 0 everywhere, as those that a stack pads, are left out: their products are 0.
"""

from __future__ import annotations

from actors.kernels.cnn.layout import NARROW
from actors.kernels.cnn.tiles import LANES, TILE, WIDE, outer, pixel
from actors.kernels.decorators import Array, kernel
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.vectors import any_nonzero, load, splat, store, total

Scratch = tuple[Array, Array, Array, Array]
"""Space for the packed rows and weights of an environment, for sums of gradients, and zeros."""
Size = tuple[int, int, int, int, int]
"""Height, width, rows of data, and the two sizes of the filters."""
BLOCK = 1024
"""Numbers of each channel that a tile of gradients reads, so that those of eight channels fit into the first cache."""


@inner
def live_channels(x: Array, channels: int, size: int) -> int:
    """Return the number of channels up to the last one that is not 0 everywhere; `x` is flat."""
    for c in range(channels - 1, -1, -1):
        for i in range(c * size, (c + 1) * size, LANES):
            if any_nonzero(load(x, i)):
                return c + 1
    return 0


@inner
def live_weights(w: Array, repeats: int, count: int, size: int) -> int:
    """Return the number of entries of the second dimension of w [repeats, count, size], which is flat, up to the last
    one that is not 0 everywhere."""
    for k in range(count - 1, -1, -1):
        for r in range(repeats):
            for i in range((r * count + k) * size, (r * count + k + 1) * size):
                if w[i] != 0:  # also if it is not a number
                    return k + 1
    return 0


@inner
def pack_rows(x: Array, channels: int, positions: int, rows: int, first: int, lanes: int, packed: Array) -> None:
    """Copy `lanes` rows of data of x [C, P, M], from `first`, to packed [P, C, lanes]."""
    for c in range(channels):
        for p in range(positions):
            source, target = (c * positions + p) * rows + first, (p * channels + c) * lanes
            for i in range(0, lanes, LANES):
                store(packed, target + i, load(x, source + i))


@inner
def pack_weights(w: Array, outputs: int, inputs: int, all_inputs: int, taps: int, back: bool, packed: Array) -> None:
    """Copy weights in the order in which tiles read them: [outputs / TILE, taps, inputs, TILE], padded with 0.

    w is [outputs, all_inputs, taps]; with `back` it is [inputs, all_inputs, taps], outputs are its second dimension,
    and taps are reversed, which is the convolution of the gradient.
    """
    panels = (outputs + TILE - 1) // TILE
    for n in range(panels):
        for t in range(taps):
            for k in range(inputs):
                for j in range(TILE):
                    o = n * TILE + j
                    value = w.dtype.type(0)
                    if o < outputs:
                        value = (
                            w[(k * all_inputs + o) * taps + taps - 1 - t]
                            if back
                            else w[(o * all_inputs + k) * taps + t]
                        )
                    packed[((n * taps + t) * inputs + k) * TILE + j] = value


@inner
def convolve_packed(
    packed: Array, w: Array, b: Array, y: Array, size: Size, inputs: int, outputs: int, first: int, lanes: int
) -> None:
    """Write `lanes` rows of data of y [O, H, W, M], from `first`; size is (H, W, M, TH, TW)."""
    height, width, rows, tall, wide = size
    for top in range(height):
        above, below = max(0, tall // 2 - top), min(tall, height + tall // 2 - top)
        for left in range(width):
            before, behind = max(0, wide // 2 - left), min(wide, width + wide // 2 - left)
            corner = (top + above - tall // 2) * width + left + before - wide // 2
            for j in range(0, outputs, TILE):
                tap = j // TILE * tall * wide + above * wide + before
                pixel(
                    lanes,
                    outputs - j,
                    packed,
                    w,
                    b,
                    y,
                    corner * inputs * lanes,
                    tap * inputs * TILE,
                    j,
                    ((j * height + top) * width + left) * rows + first,
                    width * inputs * lanes,
                    wide * inputs * TILE,
                    height * width * rows,
                    below - above,
                    (behind - before) * inputs,
                )


@inner
def convolve_one(
    x: Array, w: Array, b: Array, y: Array, size: Size, inputs: int, outputs: int, all_inputs: int, back: bool,
    packed_x: Array, packed_w: Array,
) -> None:  # fmt: skip
    """Write the first `outputs` channels of y, from the first `inputs` of x."""
    height, width, rows, tall, wide = size
    pack_weights(w, outputs, inputs, all_inputs, tall * wide, back, packed_w)
    first = 0
    while first < rows:
        lanes = WIDE if rows - first >= WIDE else NARROW
        pack_rows(x, inputs, height * width, rows, first, lanes, packed_x)
        convolve_packed(packed_x, packed_w, b, y, size, inputs, outputs, first, lanes)
        first += lanes


@inner
def fill_channels(y: Array, b: Array, start: int, stop: int, size: int) -> None:
    """Write the bias of each of these channels."""
    for c in range(start, stop):
        value = splat(b[c])
        for i in range(c * size, (c + 1) * size, LANES):
            store(y, i, value)


@inner
def gradient_one(
    x: Array, d: Array, dw: Array, size: Size, inputs: int, outputs: int, all_inputs: int, sums: Array
) -> None:
    """Write dw [O, I, TH, TW] of the first `outputs` and `inputs` channels; `sums` has a vector for each weight."""
    height, width, rows, tall, wide = size
    taps, area = tall * wide, height * width * rows
    zero = splat(dw.dtype.type(0))
    for i in range(0, outputs * inputs * taps * LANES, LANES):
        store(sums, i, zero)
    columns = min(width, max(1, BLOCK // rows))
    lines = max(1, BLOCK // (width * rows)) if columns == width else 1
    for j in range(0, outputs, TILE):
        high = min(TILE, outputs - j)
        for top in range(0, height, lines):
            for left in range(0, width, columns):
                for k in range(0, inputs, TILE):
                    low = min(TILE, inputs - k)
                    for tap in range(taps):
                        down, right = tap // wide - tall // 2, tap % wide - wide // 2
                        y0, y1 = max(top, -down), min(top + lines, height, height - down)
                        x0, x1 = max(left, -right), min(left + columns, width, width - right)
                        if y0 < y1 and x0 < x1:
                            outer(
                                high,
                                low,
                                d,
                                x,
                                sums,
                                j * area + (y0 * width + x0) * rows,
                                k * area + ((y0 + down) * width + x0 + right) * rows,
                                area,
                                area,
                                width * rows,
                                y1 - y0,
                                (x1 - x0) * rows,
                                ((j * taps + tap) * inputs + k) * LANES,
                                taps * inputs * LANES,
                                LANES,
                            )
    for j in range(outputs):
        for k in range(inputs):
            for tap in range(taps):
                dw[(j * all_inputs + k) * taps + tap] = total(load(sums, ((j * taps + tap) * inputs + k) * LANES))


@inner
def convolve_env(x: Array, w: Array, b: Array, y: Array, groups: int, scratch: Scratch) -> None:
    """Compute y [G * O, H, W, M] = w * x + b of one environment; `b [G * O]`."""
    packed_x, packed_w, _, _ = scratch
    outputs, inputs = w.shape[0] // groups, w.shape[1]
    size = (x.shape[1], x.shape[2], x.shape[3], w.shape[2], w.shape[3])
    area = size[0] * size[1] * size[2]
    filters = inputs * size[3] * size[4]
    for g in range(groups):
        own_x = x[g * inputs : (g + 1) * inputs].reshape(inputs * area)
        own_w = w[g * outputs : (g + 1) * outputs].reshape(outputs * filters)
        own_y = y[g * outputs : (g + 1) * outputs].reshape(outputs * area)
        own_b = b[g * outputs : (g + 1) * outputs]
        kept, used = live_weights(own_w, 1, outputs, filters), live_channels(own_x, inputs, area)
        kept = kept if used else 0
        convolve_one(own_x, own_w, own_b, own_y, size, used, kept, inputs, False, packed_x, packed_w)
        fill_channels(own_y, own_b, kept, outputs, area)


@inner
def convolve_env_input(d: Array, w: Array, dx: Array, groups: int, scratch: Scratch) -> None:
    """Compute the gradient of x [G * I, H, W, M] of one environment from that of y, `d`."""
    packed_x, packed_w, _, zeros = scratch
    outputs, inputs = w.shape[0] // groups, w.shape[1]
    size = (d.shape[1], d.shape[2], d.shape[3], w.shape[2], w.shape[3])
    area = size[0] * size[1] * size[2]
    filters = inputs * size[3] * size[4]
    for g in range(groups):
        own_w = w[g * outputs : (g + 1) * outputs].reshape(outputs * filters)
        own_d = d[g * outputs : (g + 1) * outputs].reshape(outputs * area)
        own_dx = dx[g * inputs : (g + 1) * inputs].reshape(inputs * area)
        kept = live_channels(own_d, outputs, area)
        reached = live_weights(own_w, outputs, inputs, size[3] * size[4]) if kept else 0
        convolve_one(own_d, own_w, zeros, own_dx, size, kept, reached, inputs, True, packed_x, packed_w)
        fill_channels(own_dx, zeros, reached, inputs, area)


@inner
def convolve_env_weights(x: Array, d: Array, dw: Array, db: Array, groups: int, scratch: Scratch) -> None:
    """Compute the gradients of w and b of one environment from that of y, `d`."""
    _, _, sums, _ = scratch
    outputs, inputs = dw.shape[0] // groups, dw.shape[1]
    size = (x.shape[1], x.shape[2], x.shape[3], dw.shape[2], dw.shape[3])
    area = size[0] * size[1] * size[2]
    filters = inputs * size[3] * size[4]
    for g in range(groups):
        own_x = x[g * inputs : (g + 1) * inputs].reshape(inputs * area)
        own_d = d[g * outputs : (g + 1) * outputs].reshape(outputs * area)
        own_dw = dw[g * outputs : (g + 1) * outputs].reshape(outputs * filters)
        kept, used = live_channels(own_d, outputs, area), live_channels(own_x, inputs, area)
        own_dw[:] = 0
        gradient_one(own_x, own_d, own_dw, size, used, kept, inputs, sums)
        for j in range(outputs):
            summed = splat(d.dtype.type(0))
            if j < kept:
                for i in range(j * area, (j + 1) * area, LANES):
                    summed = summed + load(own_d, i)
            db[g * outputs + j] = total(summed)


@kernel
def convolution(x: Array, w: Array, b: Array, y: Array, groups: int, scratch: Scratch) -> None:
    """Compute y = w * x + b; `b [E, G * O]`."""
    for e in range(len(x)):
        convolve_env(x[e], w[e], b[e], y[e], groups, scratch)


@kernel
def convolution_back(
    x: Array, w: Array, d: Array, dx: Array, dw: Array, db: Array, groups: int, input_too: bool, weights_too: bool,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Compute the gradients of x if `input_too`, and of w and b if `weights_too`, from that of y, `d`."""
    for e in range(len(x)):
        if input_too:
            convolve_env_input(d[e], w[e], dx[e], groups, scratch)
        if weights_too:
            convolve_env_weights(x[e], d[e], dw[e], db[e], groups, scratch)
