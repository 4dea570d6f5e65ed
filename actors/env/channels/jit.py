"""The decorator of the kernels of this folder, and the folder that caches them (see `actors.jit.cache`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from actors.jit import cache
from actors.jit.decorators import Kernel
from actors.jit.decorators import allocation_free as inner

__all__ = ["inner", "kernel"]

F = TypeVar("F", bound=Callable[..., Any])
PRECISION = "float32"


@functools.cache
def cache_dir() -> Path:
    """Return the folder, in the user's cache; in the temporary folder if that is not writable."""
    return cache.kernel_folder("channels", Path(__file__).parent)


def is_compiled() -> bool:
    """Return whether the kernels of this folder are compiled."""
    return cache.is_compiled(cache_dir(), PRECISION)


def kernel(function: F) -> F:
    """Compile a function that Python calls when it is first called, and cache it on disk."""
    return cast(F, Kernel(function, cache_dir))
