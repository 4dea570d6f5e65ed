"""`compile_kernels`: compiles the kernels of this folder once per machine."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.jit.compile import compile_once
from actors.policy.kernels.cache import PRECISION, cache_dir
from actors.policy.kernels.net import FEEDFORWARD, NET, Net
from actors.policy.kernels.step import run_step


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are: about twenty seconds. See `compile_once`."""
    compile_once(cache_dir(), PRECISION, __name__)


@cache
def load_kernels() -> Any:
    """Return `run_step`, compiled and loaded: tenths of a second where the kernels are compiled."""
    compile_kernels()
    fill_cache(PRECISION)
    return run_step.of(PRECISION)


def fill_cache(precision: str) -> None:
    """Compile the kernels in this process, by a step of no rows."""
    plan = np.zeros(NET, np.int64)
    plan[Net._fields.index("core")] = FEEDFORWARD
    reals, flags, whole = (partial(_empty, dtype) for dtype in (np.float32, np.bool_, np.int64))
    states = [reals(0, 0, 0) for _ in range(8)]  # before and after
    options = plan, reals(0), np.zeros(1), np.zeros(4), whole(0), flags(0, 0)
    masks = flags(0, 0), flags(0, 0), flags(0, 0)
    noise, greedy, decision = np.zeros((0, 0)), flags(0), (whole(0, 0), reals(0, 0), flags(0, 0), reals(2, 0))
    run = run_step.of(precision)
    run(*options, reals(0, 0), whole(0, 0), *masks, whole(0), *states[:4], noise, greedy, *decision, *states[4:])


def _empty(dtype: type, *shape: int) -> NDArray[Any]:
    return np.zeros(shape, dtype)
