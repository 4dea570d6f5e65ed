"""Decorators that compile functions of arrays with Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from actors.env.kernels.cache import cache_dir

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}
EXACT_ORDER = {"contract", "nsz"}


def kernel(function: F) -> F:
    """Compile a function that Python calls, for the argument types of its first call, and cache it on disk."""
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(cache_dir())  # type: ignore[attr-defined]
    try:
        return _compiled(function, ARITHMETIC, cache=True)
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def inner(function: F) -> F:
    """Compile a function that only kernels call."""
    return _compiled(function, ARITHMETIC, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def ordered(function: F) -> F:
    """Compile as `inner` does, without reordering arithmetic."""
    return _compiled(function, EXACT_ORDER, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(function: F, arithmetic: set[str], **options: bool) -> F:
    njit: Any = numba.njit
    return cast(F, njit(function, fastmath=arithmetic, error_model="numpy", nogil=True, **options))
