"""The folder that caches the kernels of this folder (see `actors.jit.cache`), and the decorator that uses it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.jit import cache
from actors.jit.decorators import Kernel

PRECISION = "float32"


@functools.cache
def cache_dir() -> Path:
    """Return the folder."""
    return cache.kernel_folder("acting", Path(__file__).parent)


def is_compiled() -> bool:
    """Return whether the kernels are compiled."""
    return cache.is_compiled(cache_dir(), PRECISION)


def kernel(function: Callable[..., Any]) -> Kernel:
    """Compile a function that Python calls when it is first called, and cache it on disk."""
    return Kernel(function, cache_dir)
