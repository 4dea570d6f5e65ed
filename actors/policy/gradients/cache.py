"""The folder that caches the kernels of this folder (see `actors.jit.cache`)."""

from __future__ import annotations

import functools
from pathlib import Path

from actors.jit import cache

PRECISION = "float32"


@functools.cache
def cache_dir() -> Path:
    """Return the folder."""
    here = Path(__file__).parent
    return cache.kernel_folder("gradients", here, here.parent / "kernels")


def is_compiled() -> bool:
    """Return whether the kernels are compiled."""
    return cache.is_compiled(cache_dir(), PRECISION)
