"""Decorators that compile functions of arrays with Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending
import numpy as np
from numpy.typing import NDArray

from actors.kernels.cache import cache_dir

F = TypeVar("F", bound=Callable[..., Any])
Array = NDArray[Any]

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}
EXACT_ORDER = {"contract", "nsz"}

intrinsic: Any = numba.extending.intrinsic
"""Makes a function of argument types, which returns a signature and a generator of LLVM code, callable in kernels."""


class Kernel:
    """A function that Python calls, compiled for each precision apart, for the argument types of its first call.

    Each precision has a folder of its own on disk: Numba's index of cached functions has no lock, and two processes may
    compile the two precisions at the same time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.package = function.__module__.split(".")[2]  # of actors.kernels.PACKAGE
        self._compiled: dict[np.dtype[Any], Any] = {}  # by precision: what Numba returns

    def __call__(self, *args: Any) -> Any:
        """Call the function, in the precision of its first array."""
        for arg in args:
            if isinstance(arg, np.ndarray):
                return self.in_precision(arg.dtype)(*args)
        raise TypeError(f"{self.function.__name__} takes arrays")

    def in_precision(self, precision: np.dtype[Any]) -> Any:
        """Return the function in one precision."""
        if precision not in self._compiled:
            self._compiled[precision] = self._compile(precision.name)
        return self._compiled[precision]

    def _compile(self, precision: str) -> Any:
        before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
        numba.config.CACHE_DIR = str(cache_dir(self.package) / precision)  # type: ignore[attr-defined]
        try:
            return _compiled(self.function, ARITHMETIC, cache=True)
        finally:
            numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def kernel(function: F) -> F:
    """Compile a function that Python calls when it is first called, and cache it on disk."""
    return cast(F, Kernel(function))


def inner(function: F) -> F:
    """Compile a function that only kernels call."""
    return _compiled(function, ARITHMETIC, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def allocation_free(function: F) -> F:
    """Compile as `inner` does a function that does not allocate.

    It does not count references to the rows that it cuts out of arrays, which would take longer than the arithmetic on
    them.
    """
    return _compiled(function, ARITHMETIC, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def ordered(function: F) -> F:
    """Compile as `inner` does, without reordering arithmetic."""
    return _compiled(function, EXACT_ORDER, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def elementary(function: F) -> F:
    """Compile a function of numbers as `ordered` does, and insert it where it is called, so that loops that call it
    are vectorized."""
    return _compiled(function, EXACT_ORDER, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)


def _compiled(function: F, arithmetic: set[str], **options: bool) -> F:
    njit: Any = numba.njit
    return cast(F, njit(function, fastmath=arithmetic, error_model="numpy", nogil=True, **options))
