"""Elementwise functions in float32 that LLVM vectorizes, unlike those of a C library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from actors.kernels.decorators import elementary

Real = Any  # np.float32, a number

_ONE, _TWO = np.float32(1.0), np.float32(2.0)
_LEAST, _LARGEST = np.float32(-87.0), np.float32(87.0)  # between them, exp is neither subnormal nor infinite
_LOG2_E = np.float32(1.0 / math.log(2.0))
_LN2_HIGH = np.float32(0.693359375)  # nine bits, so that products with small integers are exact
_LN2_LOW = np.float32(math.log(2.0) - 0.693359375)
_ROUNDER = np.float32(1.5 * 2.0**23)  # adding it rounds to an integer, which is in the low bits of the sum
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1.0 / math.factorial(k)) for k in range(2, 8))


def _scale_by_exponent(typing: Any, rounded: Any) -> Any:
    """Return 2^n for `rounded` = n + _ROUNDER, by moving n into the exponent."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        whole = ir.IntType(32)
        bits = builder.shl(builder.bitcast(args[0], whole), whole(23))
        return builder.bitcast(builder.add(bits, whole(127 << 23)), ir.FloatType())

    return types.float32(types.float32), generate


_power_of_two: Any = intrinsic(_scale_by_exponent)


@elementary
def _reduced(x: Real) -> tuple[Real, Real]:
    """Return 2^n and e^r - 1 for x = n log 2 + r with |r| at most half of log 2, by the Taylor series (error 1e-8)."""
    x = _LEAST if x < _LEAST else x  # NaN stays NaN
    x = _LARGEST if x > _LARGEST else x
    rounded = x * _LOG2_E + _ROUNDER
    n = rounded - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    series = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * _C7))))
    return _power_of_two(rounded), r + r * r * series


@elementary
def exponential(x: Real) -> Real:
    """Return e^x, for x in [-87, 87]; values beyond are those at the ends."""
    power, rest = _reduced(x)
    return power * rest + power


@elementary
def sigmoid(x: Real) -> Real:
    """Return 1 / (1 + e^-x)."""
    return _ONE / (_ONE + exponential(-x))


@elementary
def hyperbolic_tangent(x: Real) -> Real:
    """Return tanh x = m / (m + 2) with m = e^2x - 1."""
    power, rest = _reduced(_TWO * x)
    less = power * rest + (power - _ONE)
    return less / (less + _TWO)
