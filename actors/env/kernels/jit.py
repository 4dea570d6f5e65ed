"""`kernel`: how a function of arrays becomes machine code, compiled once per machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from actors.env.kernels.cache import folder

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be taken in another order and products fused; NaN and infinity keep their meaning.
ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}
EXACT_ORDER = {"contract", "nsz"}


def kernel(function: F) -> F:
    """Machine code for `function`, specialised by the types of its arguments at the first call, and kept on disk."""
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(folder())  # type: ignore[attr-defined]
    try:
        return _compiled(function, ARITHMETIC, cache=True)
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def inner(function: F) -> F:
    """For calls from kernels alone."""
    return _compiled(function, ARITHMETIC, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def ordered(function: F) -> F:
    """As `inner`, for arithmetic whose order matters."""
    return _compiled(function, EXACT_ORDER, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(function: F, arithmetic: set[str], **options: bool) -> F:
    njit: Any = numba.njit
    return cast(F, njit(function, fastmath=arithmetic, error_model="numpy", nogil=True, **options))
