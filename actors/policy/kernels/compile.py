"""`compile_kernels`: compiles the kernels of this folder once per machine."""

from __future__ import annotations

import numpy as np

from actors.jit.compile import compile_once
from actors.policy.kernels.cache import PRECISION, cache_dir
from actors.policy.kernels.net import FEEDFORWARD, NET, Net
from actors.policy.kernels.step import run_step


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are: about ten seconds. See `compile_once`."""
    compile_once(cache_dir(), PRECISION, __name__)


def fill_cache(precision: str) -> None:
    """Compile the kernels in this process, by a step of no rows."""
    plan = np.zeros(NET, np.int64)
    plan[Net._fields.index("core")] = FEEDFORWARD
    reals, flags, whole = (lambda *shape, d=d: np.zeros(shape, d) for d in (np.float32, np.bool_, np.int64))
    run_step.of(precision)(
        plan, reals(0), np.zeros(1), np.zeros(4), whole(0), flags(0, 0), reals(0, 0), whole(0, 0), flags(0, 0),
        flags(0, 0), flags(0, 0), whole(0), *(reals(0, 0, 0) for _ in range(4)), np.zeros((0, 0)), flags(0),
        whole(0, 0), reals(0, 0), flags(0, 0), reals(2, 0), *(reals(0, 0, 0) for _ in range(4)),
    )  # fmt: skip
