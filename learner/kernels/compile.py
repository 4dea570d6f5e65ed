"""`load_kernels`: the kernels of this folder, compiled once per machine."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.jit.compile import compile_once
from learner.kernels.cache import PRECISION, cache_dir
from learner.kernels.objective import loss
from learner.kernels.optimizer import adamw, scale, squares


class UpdateKernels(NamedTuple):
    """The compiled functions of this folder."""

    loss: Any
    squares: Any
    scale: Any
    adamw: Any


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are. See `compile_once`."""
    compile_once(cache_dir(), PRECISION, __name__)


@cache
def load_kernels() -> UpdateKernels:
    """Return the kernels, compiled and loaded: tenths of a second where they are compiled."""
    compile_kernels()
    fill_cache(PRECISION)
    return UpdateKernels(*(kernel.of(PRECISION) for kernel in (loss, squares, scale, adamw)))


def fill_cache(precision: str) -> None:
    """Compile the kernels in this process, for no steps and no parameters."""
    reals, flags, whole = (partial(_empty, dtype) for dtype in (np.float32, np.bool_, np.int64))
    one, two = reals(0), reals(0, 0)
    losses = (two, two, one, two, two, two, flags(0, 0), flags(0), one, one, one)
    loss.of(precision)(*losses, np.ones(5), False, two, two, one, np.zeros(4))
    none = whole(0)
    squares.of(precision)(one, none, none, np.zeros(0))
    scale.of(precision)(one, none, none, 1.0)
    adamw.of(precision)(one, *[none] * 6, 0.0, 1e-3, 0.9, 0.999, 1e-5)


def _empty(dtype: type, *shape: int) -> NDArray[Any]:
    return np.zeros(shape, dtype)
