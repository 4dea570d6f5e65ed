"""Tiles: small blocks of a convolution, and of the gradient of its weights, whose sums stay in vector registers.

Lanes of a vector are rows of data. A tile of a convolution holds one pixel of `TILE` output channels for `vectors`
vectors of rows; every step loads the rows of one input channel and tap, and one weight for each output channel. Each
lane is summed in the same order whatever the others hold.
"""

from __future__ import annotations

from typing import Any

import numba.core.cgutils
from llvmlite import ir
from numba import types

from actors.kernels.cnn.layout import NARROW
from actors.kernels.decorators import Array, intrinsic
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.vectors import VectorType, arrays, call, read, register_bytes, spread, vector_ir, write

TILE = 4  # output channels of a tile, and input channels of a tile of gradients
LANES = register_bytes() // 4
WIDE = 4 * LANES if register_bytes() == 64 else 2 * LANES
"""Rows of a wide tile: 16 vectors of sums fill half of AVX-512's registers, 8 half of AVX2's."""
I64 = ir.IntType(64)
cgutils: Any = numba.core.cgutils


def _convolution_tile(height: int, vectors: int) -> Any:
    """Return an intrinsic that computes one pixel of `height` output channels."""

    @intrinsic
    def tile(typingctx, x, w, b, y, x_at, w_at, b_at, y_at, x_row, w_row, y_channel, rows, steps):  # type: ignore[no-untyped-def]
        """Write to y[y_at + j * y_channel] the sum of b[b_at + j] and w[w_at + r * w_row + TILE * k + j] *
        x[x_at + r * x_row + k * (rows of data)], over r in range(rows) and k in range(steps)."""
        t = vector_ir(VectorType(x.dtype))

        def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
            xs, ws, bs, ys = (a.data for a in arrays(context, builder, sig, args, 0, 1, 2, 3))
            x_at, w_at, b_at, y_at, x_row, w_row, y_channel, rows, steps = args[4:]

            def bias(j: int) -> Any:
                return builder.load(builder.gep(bs, [builder.add(b_at, I64(j))]))

            starts = [spread(builder, bias(j), t) for j in range(height)]
            sums = [[cgutils.alloca_once_value(builder, start) for _ in range(vectors)] for start in starts]
            with cgutils.for_range(builder, rows) as row:
                x_line = builder.gep(xs, [builder.add(x_at, builder.mul(row.index, x_row))])
                w_line = builder.gep(ws, [builder.add(w_at, builder.mul(row.index, w_row))])
                with cgutils.for_range(builder, steps) as step:
                    here = builder.mul(step.index, I64(vectors * t.count))
                    x_k = [
                        read(builder, builder.gep(x_line, [builder.add(here, I64(v * t.count))]), t)
                        for v in range(vectors)
                    ]
                    at = builder.mul(step.index, I64(TILE))
                    for j, line_sums in enumerate(sums):
                        scalar = builder.load(builder.gep(w_line, [builder.add(at, I64(j))]))
                        factor = spread(builder, scalar, t)
                        for value, s in zip(x_k, line_sums, strict=True):
                            builder.store(call(builder, "llvm.fma", factor, value, builder.load(s)), s)
            for j, line_sums in enumerate(sums):
                line = builder.gep(ys, [builder.add(y_at, builder.mul(y_channel, I64(j)))])
                for v, s in enumerate(line_sums):
                    write(builder, builder.load(s), builder.gep(line, [I64(v * t.count)]))
            return context.get_dummy_value()

        return types.void(x, w, b, y, *[types.int64] * 9), generate

    return tile


def _gradient_tile(height: int, width: int) -> Any:
    """Return an intrinsic that adds to `height` x `width` sums over pixels and rows of data."""

    @intrinsic
    def tile(typingctx, d, x, sums, d_at, x_at, d_channel, x_channel, row, rows, length, at, by_j, by_k):  # type: ignore[no-untyped-def]
        """Add to the vector at sums[at + j * by_j + k * by_k] the products of d[d_at + j * d_channel + r * row + i:]
        and x[x_at + k * x_channel + r * row + i:], over r in range(rows) and vectors i in range(length)."""
        t = vector_ir(VectorType(x.dtype))

        def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
            ds, xs, out = (a.data for a in arrays(context, builder, sig, args, 0, 1, 2))
            d_at, x_at, d_channel, x_channel, row, rows, length, at, by_j, by_k = args[3:]

            def starts(data: Any, first: Any, step: Any, count: int) -> list[Any]:
                return [builder.gep(data, [builder.add(first, builder.mul(step, I64(n)))]) for n in range(count)]

            places = [p for start in starts(out, at, by_j, height) for p in starts(start, I64(0), by_k, width)]
            totals = [cgutils.alloca_once_value(builder, read(builder, p, t)) for p in places]
            d_lines, x_lines = starts(ds, d_at, d_channel, height), starts(xs, x_at, x_channel, width)
            with cgutils.for_range(builder, rows) as line:
                first = builder.mul(line.index, row)
                with cgutils.for_range_slice(builder, I64(0), length, I64(t.count), inc=True) as (i, _):
                    here = builder.add(first, i)
                    d_i = [read(builder, builder.gep(p, [here]), t) for p in d_lines]
                    x_i = [read(builder, builder.gep(p, [here]), t) for p in x_lines]
                    for j, a in enumerate(d_i):
                        for k, b in enumerate(x_i):
                            s = totals[j * width + k]
                            builder.store(call(builder, "llvm.fma", a, b, builder.load(s)), s)
            for s, p in zip(totals, places, strict=True):
                write(builder, builder.load(s), p)
            return context.get_dummy_value()

        return types.void(d, x, sums, *[types.int64] * 10), generate

    return tile


_wide_4, _wide_3, _wide_2, _wide_1 = (_convolution_tile(n, WIDE // LANES) for n in (4, 3, 2, 1))
_narrow_4, _narrow_1 = (_convolution_tile(n, NARROW // LANES) for n in (4, 1))
_outer_4_4, _outer_4_3, _outer_4_1 = (_gradient_tile(4, n) for n in (4, 3, 1))
_outer_2_4, _outer_2_1, _outer_1_4, _outer_1_1 = (_gradient_tile(*n) for n in ((2, 4), (2, 1), (1, 4), (1, 1)))


@inner
def pixel(
    lanes: int, channels: int, x: Array, w: Array, b: Array, y: Array, x_at: int, w_at: int, b_at: int, y_at: int,
    x_row: int, w_row: int, y_channel: int, rows: int, steps: int,
) -> None:  # fmt: skip
    """Compute one pixel of up to TILE output channels for WIDE or NARROW rows of data; see `_convolution_tile`."""
    if lanes == WIDE:
        if channels >= 4:
            _wide_4(x, w, b, y, x_at, w_at, b_at, y_at, x_row, w_row, y_channel, rows, steps)
        elif channels == 3:
            _wide_3(x, w, b, y, x_at, w_at, b_at, y_at, x_row, w_row, y_channel, rows, steps)
        elif channels == 2:
            _wide_2(x, w, b, y, x_at, w_at, b_at, y_at, x_row, w_row, y_channel, rows, steps)
        else:
            _wide_1(x, w, b, y, x_at, w_at, b_at, y_at, x_row, w_row, y_channel, rows, steps)
    elif channels >= 4:
        _narrow_4(x, w, b, y, x_at, w_at, b_at, y_at, x_row, w_row, y_channel, rows, steps)
    else:
        for j in range(channels):
            _narrow_1(x, w, b, y, x_at, w_at + j, b_at + j, y_at + j * y_channel, x_row, w_row, y_channel, rows, steps)


@inner
def outer(
    height: int, width: int, d: Array, x: Array, sums: Array, d_at: int, x_at: int, d_channel: int, x_channel: int,
    row: int, rows: int, length: int, at: int, by_j: int, by_k: int,
) -> None:  # fmt: skip
    """Add the products of `height` by `width` channels, each up to TILE; see `_gradient_tile`."""
    j = 0
    while j < height:
        high = 4 if height - j >= 4 else 2 if height - j >= 2 else 1
        k = 0
        while k < width:
            own_d, own_x, place = d_at + j * d_channel, x_at + k * x_channel, at + j * by_j + k * by_k
            left = width - k
            if high == 4 and left >= 4:
                _outer_4_4(d, x, sums, own_d, own_x, d_channel, x_channel, row, rows, length, place, by_j, by_k)
                k += 4
            elif high == 4 and left == 3:
                _outer_4_3(d, x, sums, own_d, own_x, d_channel, x_channel, row, rows, length, place, by_j, by_k)
                k += 3
            elif high == 4:
                _outer_4_1(d, x, sums, own_d, own_x, d_channel, x_channel, row, rows, length, place, by_j, by_k)
                k += 1
            elif high == 2 and left >= 4:
                _outer_2_4(d, x, sums, own_d, own_x, d_channel, x_channel, row, rows, length, place, by_j, by_k)
                k += 4
            elif high == 2:
                _outer_2_1(d, x, sums, own_d, own_x, d_channel, x_channel, row, rows, length, place, by_j, by_k)
                k += 1
            elif left >= 4:
                _outer_1_4(d, x, sums, own_d, own_x, d_channel, x_channel, row, rows, length, place, by_j, by_k)
                k += 4
            else:
                _outer_1_1(d, x, sums, own_d, own_x, d_channel, x_channel, row, rows, length, place, by_j, by_k)
                k += 1
        j += high
