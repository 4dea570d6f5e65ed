"""Vectors of numbers as a type of Numba, as wide as the processor's registers, so that loops state what runs at once.

LLVM vectorizes a plain loop only behind checks that its arrays do not overlap and that there are enough numbers. With
rows of 64 numbers these checks take longer than the arithmetic. Arrays that are read and written as vectors have rows
of a multiple of `PADDING` numbers. Operations keep their order; a product and a sum may be fused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import models, overload, register_model

from actors.kernels.cache import has_feature
from actors.kernels.decorators import intrinsic

PADDING = 32
"""The length of rows is a multiple of this."""
FLAGS = ("contract", "nsz")


@cache
def register_bytes() -> int:
    """Return the width of this processor's vector registers."""
    return 64 if has_feature("avx512f") else 32


class VectorType(types.Type):
    """A register full of numbers of one precision."""

    def __init__(self, real: Any) -> None:
        self.real, self.lanes = real, register_bytes() * 8 // real.bitwidth
        super().__init__(name=f"vector({self.lanes} x {real})")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: VectorType) -> None:
        super().__init__(manager, fe_type, vector_ir(fe_type))  # type: ignore[no-untyped-call]


def vector_ir(vector: VectorType) -> ir.VectorType:
    """Return the type in LLVM."""
    return ir.VectorType(ir.FloatType() if vector.real == types.float32 else ir.DoubleType(), vector.lanes)


def constant(t: ir.VectorType, value: float) -> ir.Constant:
    """Return a vector of equal numbers."""
    return ir.Constant(t, [value] * t.count)


def call(builder: Any, name: str, *args: Any) -> Any:
    """Call an intrinsic function of LLVM from vectors to a vector, such as `llvm.sqrt`."""
    t = args[0].type
    return builder.call(_intrinsic(builder, name, t, t, [t] * len(args)), args)


def reduced(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers, in any order."""
    t = vector.type
    function = _intrinsic(builder, "llvm.vector.reduce.fadd", t, t.element, [t.element, t])
    return builder.call(function, [ir.Constant(t.element, -0.0), vector], fastmath=("reassoc",))


def _intrinsic(builder: Any, name: str, t: ir.VectorType, result: Any, arguments: list[Any]) -> Any:
    full = f"{name}.v{t.count}f{32 if isinstance(t.element, ir.FloatType) else 64}"
    known = builder.module.globals.get(full)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), full)


def spread(builder: Any, scalar: Any, t: ir.VectorType) -> Any:
    """Return a vector of copies of a scalar."""
    undefined, i32 = ir.Constant(t, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(undefined, scalar, i32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(i32, t.count), [0] * t.count))


def arrays(context: Any, builder: Any, signature: Any, args: Any, *which: int) -> list[Any]:
    """Return those arguments of an intrinsic that are arrays, as structures with `data` and `shape`."""
    return [context.make_array(signature.args[k])(context, builder, args[k]) for k in which]


def read(builder: Any, pointer: Any, t: ir.VectorType) -> Any:
    """Return the vector at a pointer to its first number."""
    return builder.load(builder.bitcast(pointer, t.as_pointer()), align=_alignment(t))


def write(builder: Any, value: Any, pointer: Any) -> None:
    """Store a vector at a pointer to its first number."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=_alignment(value.type))


def _alignment(t: ir.VectorType) -> int:
    return 4 if isinstance(t.element, ir.FloatType) else 8


@intrinsic
def lanes(typingctx, array):  # type: ignore[no-untyped-def]
    """Return how many numbers of the array's precision a vector holds."""
    width = VectorType(array.dtype).lanes
    return types.int64(array), lambda context, builder, sig, args: ir.IntType(64)(width)


@intrinsic
def splat(typingctx, scalar):  # type: ignore[no-untyped-def]
    """Return a vector of copies of a scalar."""
    vector = VectorType(scalar)
    return vector(scalar), lambda context, builder, sig, args: spread(builder, args[0], vector_ir(vector))


@intrinsic
def load(typingctx, row, i):  # type: ignore[no-untyped-def]
    """Return the vector that begins at row[i]."""
    vector = VectorType(row.dtype)

    def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
        (row,) = arrays(context, builder, sig, args, 0)
        return read(builder, builder.gep(row.data, [args[1]]), vector_ir(vector))

    return vector(row, types.int64), generate


@intrinsic
def store(typingctx, row, i, vector):  # type: ignore[no-untyped-def]
    """Store a vector, beginning at row[i]."""

    def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
        (row,) = arrays(context, builder, sig, args, 0)
        write(builder, args[2], builder.gep(row.data, [args[1]]))
        return context.get_dummy_value()

    return types.void(row, types.int64, vector), generate


@intrinsic
def total(typingctx, vector):  # type: ignore[no-untyped-def]
    """Return the sum of a vector's numbers."""

    return vector.real(vector), lambda context, builder, sig, args: reduced(builder, args[0])


@intrinsic
def any_nonzero(typingctx, vector):  # type: ignore[no-untyped-def]
    """Return whether any of a vector's numbers differs from 0, or is not a number."""

    def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
        t = args[0].type
        different = builder.fcmp_unordered("!=", args[0], constant(t, 0.0))
        bits = builder.bitcast(different, ir.IntType(t.count))
        return builder.icmp_unsigned("!=", bits, ir.IntType(t.count)(0))

    return types.boolean(vector), generate


def _elementwise(count: int, generate: Callable[..., Any]) -> Any:
    """Return an intrinsic of `count` vectors, whose code is `generate(builder, *vectors)`."""

    def typed(vector: VectorType) -> tuple[Any, Any]:
        signature = vector(*[vector] * count)
        return signature, lambda context, builder, sig, args: generate(builder, *args)

    if count == 1:

        @intrinsic
        def one(typingctx, a):  # type: ignore[no-untyped-def]
            return typed(a)

        return one
    if count == 2:

        @intrinsic
        def two(typingctx, a, b):  # type: ignore[no-untyped-def]
            return typed(a)

        return two

    @intrinsic
    def three(typingctx, a, b, c):  # type: ignore[no-untyped-def]
        return typed(a)

    return three


def _maximum(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", b, a), b, a)


def _rectified(builder: Any, a: Any) -> Any:
    zero = constant(a.type, 0.0)
    return builder.select(builder.fcmp_ordered("<", a, zero), zero, a)


def _where_positive(builder: Any, condition: Any, a: Any) -> Any:
    zero = constant(a.type, 0.0)
    return builder.select(builder.fcmp_ordered(">", condition, zero), a, zero)


def _where_at_least(builder: Any, a: Any, b: Any, value: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">=", a, b), value, constant(a.type, 0.0))


def _exponential(builder: Any, x: Any) -> Any:
    """Return exp(x); in single precision to about one unit in the last place.

    x is clamped to [-87, 88] and reduced to |r| <= log(2) / 2 with log(2) in two parts; then a minimax polynomial of
    degree 7 follows (coefficients: Moshier's Cephes).
    """
    t = x.type
    if not isinstance(t.element, ir.FloatType):
        return call(builder, "llvm.exp", x)

    def fused(a: Any, b: Any, c: Any) -> Any:
        return call(builder, "llvm.fma", a, b, c)

    def number(value: float) -> Any:
        return constant(t, value)

    x = builder.select(builder.fcmp_ordered(">", x, number(88.0)), number(88.0), x)
    x = builder.select(builder.fcmp_ordered("<", x, number(-87.0)), number(-87.0), x)
    n = call(builder, "llvm.floor", fused(x, number(1.44269504088896341), number(0.5)))
    r = fused(n, number(-0.693359375), x)
    r = fused(n, number(2.12194440e-4), r)
    p = number(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fused(p, r, number(c))
    y = builder.fadd(fused(builder.fmul(p, r), r, r), number(1.0))
    integers = ir.VectorType(ir.IntType(32), t.count)
    biased = builder.add(builder.fptosi(n, integers), ir.Constant(integers, [127] * t.count))
    power = builder.bitcast(builder.shl(biased, ir.Constant(integers, [23] * t.count)), t)
    return builder.fmul(y, power)


def _sigmoid(builder: Any, x: Any) -> Any:
    zero, one = constant(x.type, 0.0), constant(x.type, 1.0)
    return builder.fdiv(one, builder.fadd(one, _exponential(builder, builder.fsub(zero, x, flags=FLAGS)), flags=FLAGS))


def _tanh(builder: Any, x: Any) -> Any:
    """Return 1 - 2 / (e^2x + 1)."""
    one, two = constant(x.type, 1.0), constant(x.type, 2.0)
    power = builder.fadd(_exponential(builder, builder.fmul(two, x, flags=FLAGS)), one, flags=FLAGS)
    return builder.fsub(one, builder.fdiv(two, power), flags=FLAGS)


fma = _elementwise(3, lambda builder, a, b, c: call(builder, "llvm.fma", a, b, c))
"""a * b + c, rounded once."""
root = _elementwise(1, lambda builder, a: call(builder, "llvm.sqrt", a))
maximum = _elementwise(2, _maximum)
"""The larger of a and b, or a if one is NaN."""
rectified = _elementwise(1, _rectified)
"""a, or 0 where a is negative."""
where_positive = _elementwise(2, _where_positive)
"""where_positive(condition, a): a where the condition is positive, else 0."""
where_at_least = _elementwise(3, _where_at_least)
"""where_at_least(a, b, value): value where a >= b, else 0."""
exponential = _elementwise(1, _exponential)
sigmoid = _elementwise(1, _sigmoid)
tanh = _elementwise(1, _tanh)
_add = _elementwise(2, lambda builder, a, b: builder.fadd(a, b, flags=FLAGS))
_subtract = _elementwise(2, lambda builder, a, b: builder.fsub(a, b, flags=FLAGS))
_multiply = _elementwise(2, lambda builder, a, b: builder.fmul(a, b, flags=FLAGS))
_divide = _elementwise(2, lambda builder, a, b: builder.fdiv(a, b))


def _operator(python_operator: Callable[..., Any], function: Any) -> None:
    @overload(python_operator)
    def of_vectors(a, b):  # type: ignore[no-untyped-def]
        if isinstance(a, VectorType) and isinstance(b, VectorType):
            return lambda a, b: function(a, b)
        return None


for _python, _own in (
    (operator.add, _add),
    (operator.sub, _subtract),
    (operator.mul, _multiply),
    (operator.truediv, _divide),
):
    _operator(_python, _own)
