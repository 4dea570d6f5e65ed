"""`compile_kernels`: compiles the kernels of this folder once per machine."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.jit.compile import compile_once
from actors.policy.gradients.cache import PRECISION, cache_dir
from actors.policy.gradients.run import activation_size, differentiate, evaluate
from actors.policy.gradients.sizes import LATER, SIZES


class GradientKernels(NamedTuple):
    """The compiled functions of `run`."""

    activation_size: Any
    evaluate: Any
    differentiate: Any


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are. See `compile_once`."""
    compile_once(cache_dir(), PRECISION, __name__)


@cache
def load_kernels() -> GradientKernels:
    """Return the kernels, compiled and loaded: tenths of a second where they are compiled."""
    compile_kernels()
    fill_cache(PRECISION)
    return GradientKernels(*(kernel.of(PRECISION) for kernel in (activation_size, evaluate, differentiate)))


def fill_cache(precision: str) -> None:
    """Compile the kernels in this process, by an evaluation of no steps."""
    reals, flags, whole = (partial(_empty, dtype) for dtype in (np.float32, np.bool_, np.int64))
    plan = np.zeros(SIZES, np.int64)
    params = np.full(LATER + 4, np.zeros(1).ctypes.data)
    counts, like, network = np.zeros_like(params), reals(0), (np.zeros(1), whole(0), flags(0, 0), np.zeros(2))
    order = whole(0), np.zeros(1, np.int64), whole(0)
    steps = reals(0, 0), whole(0, 0), whole(0, 0), flags(0, 0)
    activation_size.of(precision)(like, plan, 0)
    results = reals(0, 0), reals(0, 0), reals(0)
    given = like, plan, params, counts
    evaluate.of(precision)(
        *given, *network, *order, *steps, reals(0, 0, 0), reals(0, 0, 0), reals(0), *results, reals(0), reals(0, 0)
    )
    differentiate.of(precision)(*given, *network[1:], *order, *steps, reals(0, 0, 0), reals(0), *results, params)


def _empty(dtype: type, *shape: int) -> NDArray[Any]:
    return np.zeros(shape, dtype)
