"""Decorators that compile functions of arrays with Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending
import numpy as np

from actors.env.kernels.cache import cache_dir

F = TypeVar("F", bound=Callable[..., Any])
intrinsic: Any = numba.extending.intrinsic
"""Makes a function of argument types, which returns a signature and a generator of LLVM code, callable in kernels."""

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}


class Kernel:
    """A function that Python calls, compiled for each precision apart, for the argument types of its first call.

    Each precision has a folder of its own on disk: Numba's index of cached functions has no lock, and two processes may
    compile the two precisions at the same time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.compiled: dict[str, Any] = {}
        """By precision: what Numba returns."""
        self._by_dtype: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        """Call the function, in the precision of its first array."""
        first = next(arg for arg in args if isinstance(arg, np.ndarray))
        compiled = self._by_dtype.get(first.dtype)  # its name takes microseconds
        if compiled is None:
            precision = first.dtype.name
            compiled = self._by_dtype[first.dtype] = self.compiled[precision] = self._compile(precision)
        return compiled(*args)

    def _compile(self, precision: str) -> Any:
        before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
        numba.config.CACHE_DIR = str(cache_dir() / precision)  # type: ignore[attr-defined]
        try:
            return _compiled(self.function, ARITHMETIC, cache=True)
        finally:
            numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def kernel(function: F) -> F:
    """Compile a function that Python calls when it is first called, and cache it on disk."""
    return cast(F, Kernel(function))


def inner(function: F) -> F:
    """Compile a function that only kernels call.

    It cannot allocate, and does not count references to the rows that it cuts out of arrays, which would take longer
    than the arithmetic on them.
    """
    return _compiled(function, ARITHMETIC, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def _compiled(function: F, arithmetic: set[str], **options: bool) -> F:
    njit: Any = numba.njit
    return cast(F, njit(function, fastmath=arithmetic, error_model="numpy", nogil=True, **options))
