"""`matmul`: products of matrices with any strides, from tiles that stay in vector registers.

y = s + x w, where a tile of up to ROWS rows and PANEL columns is summed in registers (as in Goto and van de Geijn,
2008). Every product of a layer and of its gradient is one of these: x may be read transposed, and s is a bias, zeros or
what y already holds. The last columns are loaded and stored with a mask, so that no array needs padding. Every row is
summed in the same order in every tile, so its result does not depend on the other rows or on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from actors.kernels.cache import has_feature
from actors.kernels.decorators import Array, inner
from actors.kernels.vectors import arrays, call, constant, read, spread, write

LANES, VECTORS = (16, 4) if has_feature("avx512f") else (8, 2)
"""Numbers per vector, and vectors per panel: 6 rows of a panel fill 24 of AVX-512's 32 registers, or 12 of 16."""
PANEL = LANES * VECTORS
ROWS = 6

_insert: Any = get_or_insert_function
_INDEX = ir.IntType(64)
_VECTOR, _MASK = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(1), LANES)
_ALIGN = ir.IntType(32)(4)


def _tile(rows: int, vectors: int, masked: bool = False) -> Callable[..., None]:
    """Build the function that computes `rows` rows of `vectors` vectors, or of the first `count` numbers of a vector.

    More vectors than a panel has come from panels `wp` apart.
    """

    @intrinsic
    def tile(
        typing: Any, s: Any, s0: Any, sr: Any, x: Any, x0: Any, xr: Any, xk: Any, w: Any, w0: Any, wk: Any, wp: Any,
        depth: Any, y: Any, y0: Any, yr: Any, count: Any,
    ) -> Any:  # fmt: skip
        """Compute `y[y0 + r yr + j] = s[s0 + r sr + j] + sum over k of x[x0 + r xr + k xk] w[w0 + k wk + j]`."""
        signature = types.void(s, s0, sr, x, x0, xr, xk, w, w0, wk, wp, depth, y, y0, yr, count)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            s, x, w, y = (a.data for a in arrays(context, builder, signature, args, 0, 3, 7, 12))
            s0, sr, x0, xr, xk, w0 = (args[k] for k in (1, 2, 4, 5, 6, 8))
            wk, wp, depth, y0, yr, count = (args[k] for k in (9, 10, 11, 13, 14, 15))
            memory = _Memory(builder, _first_lanes(builder, count) if masked else None)
            sums = [
                [memory.load(_row(builder, s, s0, sr, r), _INDEX(v * LANES)) for v in range(vectors)]
                for r in range(rows)
            ]
            inputs = [_row(builder, x, x0, xr, r) for r in range(rows)]
            panels = [_row(builder, w, w0, wp, p) for p in range(-(-vectors // VECTORS))]
            sums = _sums(builder, memory, inputs, xk, panels, wk, depth, sums)
            for r, row_sums in enumerate(sums):
                for v, total in enumerate(row_sums):
                    memory.store(total, _row(builder, y, y0, yr, r), _INDEX(v * LANES))
            return context.get_dummy_value()

        return signature, generate

    return tile


class _Memory:
    """Loads and stores vectors of floats, only the lanes of `mask` if there is one."""

    def __init__(self, builder: ir.IRBuilder, mask: Any) -> None:
        self.builder, self.mask = builder, mask

    def load(self, base: Any, index: Any) -> Any:
        pointer = self.builder.gep(base, [index])
        if self.mask is None:
            return read(self.builder, pointer, _VECTOR)
        kind = ir.FunctionType(_VECTOR, [_VECTOR.as_pointer(), _ALIGN.type, _MASK, _VECTOR])
        function = _insert(self.builder.module, kind, f"llvm.masked.load.v{LANES}f32.p0v{LANES}f32")
        pointer = self.builder.bitcast(pointer, _VECTOR.as_pointer())
        return self.builder.call(function, [pointer, _ALIGN, self.mask, constant(_VECTOR, 0.0)])

    def store(self, value: Any, base: Any, index: Any) -> None:
        pointer = self.builder.gep(base, [index])
        if self.mask is None:
            write(self.builder, value, pointer)
            return
        kind = ir.FunctionType(ir.VoidType(), [_VECTOR, _VECTOR.as_pointer(), _ALIGN.type, _MASK])
        function = _insert(self.builder.module, kind, f"llvm.masked.store.v{LANES}f32.p0v{LANES}f32")
        pointer = self.builder.bitcast(pointer, _VECTOR.as_pointer())
        self.builder.call(function, [value, pointer, _ALIGN, self.mask])


def _row(builder: ir.IRBuilder, base: Any, start: Any, stride: Any, r: int) -> Any:
    """Return the pointer to row r."""
    return builder.gep(base, [builder.add(start, builder.mul(stride, _INDEX(r)))])


def _first_lanes(builder: ir.IRBuilder, count: Any) -> Any:
    """Return the mask of the first `count` lanes."""
    lanes = ir.VectorType(_INDEX, LANES)
    index = ir.Constant(lanes, list(range(LANES)))
    return builder.icmp_signed("<", index, spread(builder, count, lanes))


def _sums(
    builder: ir.IRBuilder, memory: _Memory, inputs: list[Any], xk: Any, panels: list[Any], wk: Any, depth: Any,
    start: list[list[Any]],
) -> list[list[Any]]:  # fmt: skip
    """Build the loop over k from 0 to `depth`, at least 1; return its sums by row and vector."""
    entry, loop, after = builder.block, builder.append_basic_block("terms"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_INDEX)
    k.add_incoming(_INDEX(0), entry)
    before = [[builder.phi(_VECTOR) for _ in firsts] for firsts in start]
    starts = [builder.gep(panel, [builder.mul(k, wk)]) for panel in panels]
    loaded = [memory.load(starts[v // VECTORS], _INDEX(v % VECTORS * LANES)) for v in range(len(start[0]))]
    sums = []
    for row, phis in zip(inputs, before, strict=True):
        number = spread(builder, builder.load(builder.gep(row, [builder.mul(k, xk)])), _VECTOR)
        # One instruction if the processor has a fused one, two otherwise.
        sums.append([call(builder, "llvm.fmuladd", number, w, total) for w, total in zip(loaded, phis, strict=True)])
    following = builder.add(k, _INDEX(1))
    k.add_incoming(following, loop)
    for phis, totals, firsts in zip(before, sums, start, strict=True):
        for phi, total, first in zip(phis, totals, firsts, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(total, loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
    builder.position_at_end(after)
    return sums


_tile6, _tile5, _tile4, _tile3, _tile2, _tile1 = (_tile(rows, VECTORS) for rows in (ROWS, 5, 4, 3, 2, 1))
_pair1 = _tile(1, 2 * VECTORS)  # sums of a single row wait for each other less
_edge6, _edge2, _edge1 = (_tile(rows, 1, True) for rows in (ROWS, 2, 1))


@inner
def matmul(
    s: Array, s0: int, sr: int, x: Array, x0: int, xr: int, xk: int, w: Array, w0: int, wk: int, wp: int, depth: int,
    y: Array, y0: int, yr: int, rows: int, width: int,
) -> None:  # fmt: skip
    """Compute `y[y0 + r yr + j] = s[s0 + r sr + j] + sum over k < depth of x[x0 + r xr + k xk] w(k, j)` for all rows r
    and columns j < width.

    All arrays are flat. `w(k, j)` is `w[w0 + j + k wk]` for the first PANEL columns, and each further panel begins `wp`
    later: PANEL in a matrix by rows, more in one from `pack_transposed`.
    """
    j = 0
    while rows == 1 and j + 2 * PANEL <= width:
        at = w0 + j // PANEL * wp
        _pair1(s, s0 + j, sr, x, x0, xr, xk, w, at, wk, wp, depth, y, y0 + j, yr, 0)
        j += 2 * PANEL
    while j + PANEL <= width:
        at, r = w0 + j // PANEL * wp, 0
        while r + ROWS <= rows:
            _tile6(s, s0 + r * sr + j, sr, x, x0 + r * xr, xr, xk, w, at, wk, wp, depth, y, y0 + r * yr + j, yr, 0)
            r += ROWS
        left = rows - r
        si, xi, yi = s0 + r * sr + j, x0 + r * xr, y0 + r * yr + j
        if left == 5:
            _tile5(s, si, sr, x, xi, xr, xk, w, at, wk, wp, depth, y, yi, yr, 0)
        elif left == 4:
            _tile4(s, si, sr, x, xi, xr, xk, w, at, wk, wp, depth, y, yi, yr, 0)
        elif left == 3:
            _tile3(s, si, sr, x, xi, xr, xk, w, at, wk, wp, depth, y, yi, yr, 0)
        elif left == 2:
            _tile2(s, si, sr, x, xi, xr, xk, w, at, wk, wp, depth, y, yi, yr, 0)
        elif left == 1:
            _tile1(s, si, sr, x, xi, xr, xk, w, at, wk, wp, depth, y, yi, yr, 0)
        j += PANEL
    while j < width:
        at, r, count = w0 + j // PANEL * wp + j % PANEL, 0, width - j
        while r + ROWS <= rows:
            _edge6(s, s0 + r * sr + j, sr, x, x0 + r * xr, xr, xk, w, at, wk, wp, depth, y, y0 + r * yr + j, yr, count)
            r += ROWS
        while r + 2 <= rows:
            _edge2(s, s0 + r * sr + j, sr, x, x0 + r * xr, xr, xk, w, at, wk, wp, depth, y, y0 + r * yr + j, yr, count)
            r += 2
        if r < rows:
            _edge1(s, s0 + r * sr + j, sr, x, x0 + r * xr, xr, xk, w, at, wk, wp, depth, y, y0 + r * yr + j, yr, count)
        j += LANES


def _transposed_block(typing: Any, x: Any, x0: Any, xr: Any, y: Any, y0: Any, yr: Any) -> Any:
    """Write the transpose of the block `x[x0 + r xr + j]` of LANES by LANES to `y[y0 + j yr + r]`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        x, y = (a.data for a in arrays(context, builder, signature, args, 0, 3))
        memory, half = _Memory(builder, None), LANES // 2

        def zipped(a: Any, b: Any, first: int) -> Any:
            order = [first + k // 2 + (LANES if k % 2 else 0) for k in range(LANES)]
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), LANES), order))

        rows = [memory.load(_row(builder, x, args[1], args[2], r), _INDEX(0)) for r in range(LANES)]
        # Each round moves one bit of a number's row into its column, and one bit of its column into its row.
        for _ in range(LANES.bit_length() - 1):
            rows = [zipped(rows[r // 2], rows[r // 2 + half], half * (r % 2)) for r in range(LANES)]
        for r, row in enumerate(rows):
            memory.store(row, _row(builder, y, args[4], args[5], r), _INDEX(0))
        return context.get_dummy_value()

    return types.void(x, x0, xr, y, y0, yr), generate


_transpose: Any = intrinsic(_transposed_block)


@inner
def pack_transposed(w: Array, w0: int, stride: int, outputs: int, inputs: int, packed: Array) -> None:
    """Write the transpose of `w(o, i) = w[w0 + o stride + i]` in the order in which `matmul` reads it: with `wk` PANEL
    and `wp` PANEL times `inputs`."""
    blocks = inputs // LANES * LANES
    for o in range(0, outputs, LANES):
        start, row = o // PANEL * PANEL * inputs + o % PANEL, w0 + o * stride
        done = 0
        if o + LANES <= outputs:
            for i in range(0, blocks, LANES):
                _transpose(w, row + i, stride, packed, start + i * PANEL, PANEL)
            done = blocks
        for p in range(min(LANES, outputs - o)):
            for i in range(done, inputs):
                packed[start + p + i * PANEL] = w[row + p * stride + i]
