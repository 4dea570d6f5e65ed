"""Matrix products for a few rows: `product`, y = x w' + b, from tiles that stay in vector registers.

A library's product of a few rows spends most of its time on preparation. Here the weights are packed once, in the order
in which they are read: a panel of PANEL outputs after the other, and within a panel one input after the other. A tile
of up to ROWS rows and one panel is summed in registers (as in Goto and van de Geijn, 2008). Every row is summed in the
same order in every tile, so its result does not depend on the other rows or on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic
from numpy.typing import NDArray

from actors.jit.cache import has_feature
from actors.jit.decorators import inner
from actors.policy.kernels.net import Matrix

LANES, VECTORS = (16, 4) if has_feature("avx512f") else (8, 2)
"""Numbers per vector, and vectors per panel: 6 rows of a panel fill 24 of AVX-512's 32 registers, or 12 of 16."""
PANEL = LANES * VECTORS
ROWS = 6

Array = NDArray[Any]
_insert: Any = get_or_insert_function
_INDEX, _REAL = ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_REAL, LANES)


def padded(width: int) -> int:
    """Return the number of floats per row of a product with `width` outputs: a multiple of LANES."""
    return -(-width // LANES) * LANES


def pack(weight: Array) -> Array:
    """Return `weight [out, in]` in the order in which tiles read it, padded with zeros to `padded(out)` outputs.

    Panels of PANEL outputs come first, then the remaining ones in panels of LANES.
    """
    outputs, inputs = weight.shape
    rows = np.zeros((padded(outputs), inputs), np.float32)
    rows[:outputs] = weight
    whole = len(rows) // PANEL * PANEL
    panels = [rows[:whole].reshape(-1, PANEL, inputs), rows[whole:].reshape(-1, LANES, inputs)]
    return np.concatenate([p.transpose(0, 2, 1).ravel() for p in panels])


def _tile(rows: int, vectors: int) -> Callable[..., None]:
    """Build the function that computes `rows` rows of `vectors` vectors of outputs."""

    @intrinsic
    def tile(
        typing: Any, x: Any, x0: Any, stride: Any, w: Any, w0: Any, b0: Any, depth: Any, y: Any, y0: Any, width: Any
    ) -> Any:
        """Compute `y[y0 + r * width + j]` from `x[x0 + r * stride + k]`, weights `w[w0:]` and biases `w[b0:]`."""
        signature = types.void(x, x0, stride, w, w0, b0, depth, y, y0, width)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            x, w, y = (context.make_array(signature.args[k])(context, builder, args[k]).data for k in (0, 3, 7))
            x0, stride, w0, b0, depth, y0, width = (args[k] for k in (1, 2, 4, 5, 6, 8, 9))
            biases = [_vector(builder, w, builder.add(b0, _INDEX(v * LANES))) for v in range(vectors)]
            inputs = [builder.gep(x, [builder.add(x0, builder.mul(stride, _INDEX(r)))]) for r in range(rows)]
            sums = _sums(builder, inputs, builder.gep(w, [w0]), depth, biases)
            for r, own in enumerate(sums):
                start = builder.add(y0, builder.mul(width, _INDEX(r)))
                for v, total in enumerate(own):
                    at = builder.gep(y, [builder.add(start, _INDEX(v * LANES))])
                    builder.store(total, builder.bitcast(at, _VECTOR.as_pointer()), align=4)
            return context.get_dummy_value()

        return signature, generate

    return tile


def _sums(builder: ir.IRBuilder, inputs: list[Any], weights: Any, depth: Any, biases: list[Any]) -> list[list[Any]]:
    """Build the loop over inputs; return its sums by row and vector. `depth` is at least 1."""
    entry, loop, after = builder.block, builder.append_basic_block("inputs"), builder.append_basic_block("sums")
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    # One instruction if the processor has a fused one, two otherwise.
    multiply_add = _insert(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_INDEX)
    k.add_incoming(_INDEX(0), entry)
    before = [[builder.phi(_VECTOR) for _ in biases] for _ in inputs]
    start = builder.mul(k, _INDEX(len(biases) * LANES))
    panel = [_vector(builder, weights, builder.add(start, _INDEX(v * LANES))) for v in range(len(biases))]
    sums = []
    for row, own in zip(inputs, before, strict=True):
        number = _broadcast(builder, builder.load(builder.gep(row, [k])))
        sums.append([builder.call(multiply_add, [number, w, total]) for w, total in zip(panel, own, strict=True)])
    following = builder.add(k, _INDEX(1))
    k.add_incoming(following, loop)
    for phis, totals in zip(before, sums, strict=True):
        for phi, bias, total in zip(phis, biases, totals, strict=True):
            phi.add_incoming(bias, entry)
            phi.add_incoming(total, loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
    builder.position_at_end(after)
    return sums


def _vector(builder: ir.IRBuilder, base: Any, index: Any) -> Any:
    """Load a vector of floats at `base[index]`."""
    return builder.load(builder.bitcast(builder.gep(base, [index]), _VECTOR.as_pointer()), align=4)


def _broadcast(builder: ir.IRBuilder, number: Any) -> Any:
    undefined, zero = ir.Constant(_VECTOR, ir.Undefined), ir.IntType(32)(0)
    first = builder.insert_element(undefined, number, zero)
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


_tile6, _tile4, _tile2, _tile1 = (_tile(rows, VECTORS) for rows in (ROWS, 4, 2, 1))
_edge6, _edge2, _edge1 = (_tile(rows, 1) for rows in (ROWS, 2, 1))


@inner
def product(w: Array, m: Matrix, x: Array, x0: int, stride: int, rows: int, y: Array) -> None:
    """Compute `rows` rows of `m.width` outputs in `y`, from `m.depth` inputs each at `x[x0 + r * stride]`.

    `w` holds the packed weights and the biases of `m`. `x` and `y` are flat.
    """
    depth, width, b0 = m.depth, m.width, m.bias
    j = 0
    while j + PANEL <= width:
        at, r = m.weight + j * depth, 0
        while r + ROWS <= rows:
            _tile6(x, x0 + r * stride, stride, w, at, b0 + j, depth, y, r * width + j, width)
            r += ROWS
        if r + 4 <= rows:
            _tile4(x, x0 + r * stride, stride, w, at, b0 + j, depth, y, r * width + j, width)
            r += 4
        if r + 2 <= rows:
            _tile2(x, x0 + r * stride, stride, w, at, b0 + j, depth, y, r * width + j, width)
            r += 2
        if r < rows:
            _tile1(x, x0 + r * stride, stride, w, at, b0 + j, depth, y, r * width + j, width)
        j += PANEL
    while j < width:
        at, r = m.weight + j * depth, 0
        while r + ROWS <= rows:
            _edge6(x, x0 + r * stride, stride, w, at, b0 + j, depth, y, r * width + j, width)
            r += ROWS
        while r + 2 <= rows:
            _edge2(x, x0 + r * stride, stride, w, at, b0 + j, depth, y, r * width + j, width)
            r += 2
        if r < rows:
            _edge1(x, x0 + r * stride, stride, w, at, b0 + j, depth, y, r * width + j, width)
        j += LANES
