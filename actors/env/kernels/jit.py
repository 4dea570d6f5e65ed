"""`kernel`: how a function of arrays becomes machine code, compiled once per machine."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be taken in another order and products fused; NaN and infinity keep their meaning.
ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}
EXACT_ORDER = {"contract", "nsz"}


def kernel(function: F) -> F:
    """Machine code for `function`, specialised by the types of its arguments at the first call, and kept on disk."""
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(_folder())  # type: ignore[attr-defined]
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


@cache
def _folder() -> Path:
    """Where the machine code is kept, by the sources it comes from.

    A compiled function holds the code of those it calls, but is looked up by its own file alone: the sources of all
    kernels together name the folder, so that none is ever run with another's old code inside.
    """
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamiyo" / name
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        home = Path(tempfile.gettempdir()) / f"tamiyo-{os.getuid()}" / name
        home.mkdir(parents=True, exist_ok=True)
    return home
