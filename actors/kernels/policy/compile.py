"""`compile_kernels`: compiles the kernels of this folder once per machine."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.kernels.compile import compile_once
from actors.kernels.policy.gradients.run import activation_size, differentiate, evaluate
from actors.kernels.policy.gradients.sizes import LATER, SIZES
from actors.kernels.policy.net import FEEDFORWARD, NET, Net
from actors.kernels.policy.step import run_step

PRECISION = "float32"


class GradientKernels(NamedTuple):
    """The compiled functions of `gradients.run`."""

    activation_size: Any
    evaluate: Any
    differentiate: Any


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are: about forty seconds. See `compile_once`."""
    compile_once("policy", __name__)


@cache
def load_step() -> Any:
    """Return `run_step`, compiled and loaded: tenths of a second where the kernels are compiled."""
    compile_kernels()
    _run_step(PRECISION)
    return run_step.of(PRECISION)


@cache
def load_gradients() -> GradientKernels:
    """Return the kernels of sequences, compiled and loaded: tenths of a second where they are compiled."""
    compile_kernels()
    _run_gradients(PRECISION)
    return GradientKernels(*(kernel.of(PRECISION) for kernel in (activation_size, evaluate, differentiate)))


def fill_cache(precision: str) -> None:
    """Compile the kernels in this process, by a step and an evaluation of no rows."""
    _run_step(precision)
    _run_gradients(precision)


def _run_step(precision: str) -> None:
    plan = np.zeros(NET, np.int64)
    plan[Net._fields.index("core")] = FEEDFORWARD
    reals, flags, whole = (partial(_empty, dtype) for dtype in (np.float32, np.bool_, np.int64))
    states = [reals(0, 0, 0) for _ in range(8)]  # before and after
    options = plan, reals(0), np.zeros(1), np.zeros(4), whole(0), flags(0, 0)
    masks = flags(0, 0), flags(0, 0), flags(0, 0)
    noise, greedy, decision = np.zeros((0, 0)), flags(0), (whole(0, 0), reals(0, 0), flags(0, 0), reals(2, 0))
    run = run_step.of(precision)
    run(*options, reals(0, 0), whole(0, 0), *masks, whole(0), *states[:4], noise, greedy, *decision, *states[4:])


def _run_gradients(precision: str) -> None:
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
