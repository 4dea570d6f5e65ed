"""Matrix products of hidden tensors `[units, rows]`, in tiles whose sums stay in registers.

The matrices of these networks have 2 to 128 units and 64 rows: calling a BLAS takes as long as multiplying.
"""

from __future__ import annotations

from typing import Any

import numba.core.cgutils
import numpy as np
from llvmlite import ir
from numba import types

from actors.kernels.decorators import Array, intrinsic
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.vectors import (
    VectorType,
    arrays,
    call,
    constant,
    lanes,
    load,
    read,
    reduced,
    splat,
    spread,
    store,
    total,
    vector_ir,
    write,
)

TILE = 4  # rows of a result that are computed together
I64 = ir.IntType(64)
cgutils: Any = numba.core.cgutils


def _product_tile(height: int, vectors: int) -> Any:
    """Return an intrinsic that adds to `height` rows of a result, `vectors` vectors wide."""

    @intrinsic
    def tile(typingctx, x, w, y, j, i, offset, by_k, by_j):  # type: ignore[no-untyped-def]
        """Add sum_k w[k * by_k + j * by_j] * x[k, offset + i:] to y[j, i:], for `height` values of j."""
        t = vector_ir(VectorType(x.dtype))

        def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
            xs, ws, ys = arrays(context, builder, sig, args, 0, 1, 2)
            j, i, offset, by_k, by_j = args[3:]
            depth, length = cgutils.unpack_tuple(builder, xs.shape)
            _, rows = cgutils.unpack_tuple(builder, ys.shape)
            columns = [builder.add(i, I64(v * t.count)) for v in range(vectors)]
            below = [builder.add(j, I64(n)) for n in range(height)]
            out = [[builder.gep(ys.data, [builder.add(builder.mul(b, rows), c)]) for c in columns] for b in below]
            weights = [builder.mul(b, by_j) for b in below]
            sums = [[cgutils.alloca_once_value(builder, read(builder, p, t)) for p in line] for line in out]
            with cgutils.for_range(builder, depth) as loop:
                line = builder.add(builder.mul(loop.index, length), offset)
                x_k = [read(builder, builder.gep(xs.data, [builder.add(line, c)]), t) for c in columns]
                at = builder.mul(loop.index, by_k)
                for weight, line_sums in zip(weights, sums, strict=True):
                    scalar = builder.load(builder.gep(ws.data, [builder.add(at, weight)]))
                    factor = spread(builder, scalar, t)
                    for value, s in zip(x_k, line_sums, strict=True):
                        builder.store(call(builder, "llvm.fma", factor, value, builder.load(s)), s)
            for line, line_sums in zip(out, sums, strict=True):
                for pointer, s in zip(line, line_sums, strict=True):
                    write(builder, builder.load(s), pointer)
            return context.get_dummy_value()

        return types.void(x, w, y, *[types.int64] * 5), generate

    return tile


def _outer_tile(height: int, width: int) -> Any:
    """Return an intrinsic that computes `height` x `width` sums over rows of data."""

    @intrinsic
    def tile(typingctx, x, d, out, k, j):  # type: ignore[no-untyped-def]
        """Write sum_i x[k, i] * d[j, i] to out[k, j], for `height` values of k and `width` of j."""
        t = vector_ir(VectorType(x.dtype))

        def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
            xs, ds, outs = arrays(context, builder, sig, args, 0, 1, 2)
            k, j = args[3:]
            _, rows = cgutils.unpack_tuple(builder, ds.shape)
            _, length = cgutils.unpack_tuple(builder, outs.shape)

            def line(array: Any, first: Any, n: int) -> Any:
                return builder.gep(array.data, [builder.mul(builder.add(first, I64(n)), rows)])

            x_lines, d_lines = [line(xs, k, n) for n in range(height)], [line(ds, j, n) for n in range(width)]
            sums = [cgutils.alloca_once_value(builder, constant(t, 0.0)) for _ in range(height * width)]
            with cgutils.for_range_slice(builder, I64(0), rows, I64(t.count), inc=True) as (i, _):
                d_i = [read(builder, builder.gep(p, [i]), t) for p in d_lines]
                for n, p in enumerate(x_lines):
                    x_i = read(builder, builder.gep(p, [i]), t)
                    for value, s in zip(d_i, sums[n * width : (n + 1) * width], strict=True):
                        builder.store(call(builder, "llvm.fma", x_i, value, builder.load(s)), s)
            values = _sums(builder, [builder.load(s) for s in sums])
            for n in range(height):
                start = builder.gep(outs.data, [builder.add(builder.mul(builder.add(k, I64(n)), length), j)])
                for m in range(width):
                    builder.store(values[n * width + m], builder.gep(start, [I64(m)]))
            return context.get_dummy_value()

        return types.void(x, d, out, types.int64, types.int64), generate

    return tile


def _sums(builder: Any, vectors: list[Any]) -> list[Any]:
    """Return the sum of the numbers of each vector.

    Sums of neighbours in two vectors fill one; repeated, one vector holds the sums of as many vectors as it is long.
    """
    t = vectors[0].type
    if len(vectors) % t.count:
        return [reduced(builder, v) for v in vectors]
    results = []
    for start in range(0, len(vectors), t.count):
        group = vectors[start : start + t.count]
        while len(group) > 1:
            group = [_neighbours(builder, a, b) for a, b in zip(group[::2], group[1::2], strict=True)]
        results += [builder.extract_element(group[0], ir.IntType(32)(n)) for n in range(t.count)]
    return results


def _neighbours(builder: Any, a: Any, b: Any) -> Any:
    t = ir.VectorType(ir.IntType(32), a.type.count)
    even, odd = (ir.Constant(t, list(range(n, 2 * a.type.count, 2))) for n in (0, 1))
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))


_product_4, _product_3, _product_2, _product_1 = (_product_tile(height, 2) for height in (4, 3, 2, 1))
_outer_4_4, _outer_4_1, _outer_1_4, _outer_1_1 = (_outer_tile(*size) for size in ((4, 4), (4, 1), (1, 4), (1, 1)))


@inner
def add_product(x: Array, w: Array, y: Array, offset: int, by_k: int, by_j: int) -> None:
    """Add to y [J, B] the product of a matrix and x [K, N], columns `offset` to `offset` + B.

    The entry of the matrix in row j and column k is w[k * by_k + j * by_j].
    """
    units, rows = y.shape
    for i in range(0, rows, 2 * lanes(y)):
        whole = units - units % TILE
        for j in range(0, whole, TILE):
            _product_4(x, w, y, j, i, offset, by_k, by_j)
        if units - whole == 3:
            _product_3(x, w, y, whole, i, offset, by_k, by_j)
        elif units - whole == 2:
            _product_2(x, w, y, whole, i, offset, by_k, by_j)
        elif units - whole == 1:
            _product_1(x, w, y, whole, i, offset, by_k, by_j)


@inner
def zero_and_one() -> tuple[Any, Any]:
    """Return two integers; constants would compile kernels again."""
    return np.int64(0), np.int64(1)


@inner
def affine(x: Array, w: Array, b: Array, y: Array) -> None:
    """Compute y [out, B] = w' x + b for x [in, B], w [in, out] as a vector, b [out]."""
    start, _ = zero_and_one()
    affine_at(x, w, b, y, start)


@inner
def affine_at(x: Array, w: Array, b: Array, y: Array, offset: int) -> None:
    """Compute y [out, B] as `affine` does, from x [in, N], columns `offset` to `offset` + B."""
    units, rows = y.shape
    for j in range(units):
        row, value = y[j], splat(b[j])
        for i in range(0, rows, lanes(y)):
            store(row, i, value)
    _, one = zero_and_one()
    add_product(x, w, y, offset, units, one)


@inner
def clear(x: Array) -> None:
    """Set a tensor to 0."""
    flat = x.reshape(x.size)
    for i in range(flat.size):
        flat[i] = 0


@inner
def add_affine_input(dy: Array, w: Array, dx: Array) -> None:
    """Add w dy to dx [in, B], for w [in, out] as a vector."""
    zero, one = zero_and_one()
    add_product(dy, w, dx, zero, one, dy.shape[0])


@inner
def affine_input(dy: Array, w: Array, dx: Array) -> None:
    """Compute dx [in, B] = w dy, for w [in, out] as a vector."""
    clear(dx)
    add_affine_input(dy, w, dx)


@inner
def affine_params(x: Array, dy: Array, dw: Array, db: Array) -> None:
    """Compute dw [in, out] = x dy', as a vector, and db [out], the sum of dy over rows of data."""
    depth, units = x.shape[0], dy.shape[0]
    out = dw.reshape(depth, units)
    down, right = depth - depth % TILE, units - units % TILE
    for k in range(0, down, TILE):
        for j in range(0, right, TILE):
            _outer_4_4(x, dy, out, k, j)
        for j in range(right, units):
            _outer_4_1(x, dy, out, k, j)
    for k in range(down, depth):
        for j in range(0, right, TILE):
            _outer_1_4(x, dy, out, k, j)
        for j in range(right, units):
            _outer_1_1(x, dy, out, k, j)
    sum_rows(dy, db)


@inner
def sum_rows(dy: Array, db: Array) -> None:
    """Compute db [out], the sum of dy [out, B] over rows of data."""
    for j in range(dy.shape[0]):
        row = dy[j]
        summed = splat(dy.dtype.type(0))
        for i in range(0, row.size, lanes(dy)):
            summed = summed + load(row, i)
        db[j] = total(summed)
