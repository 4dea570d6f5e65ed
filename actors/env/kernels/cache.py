"""The folder that caches the kernels of this folder (see `actors.jit.cache`)."""

from __future__ import annotations

import functools
from pathlib import Path

from actors.jit import cache


@functools.cache
def cache_dir() -> Path:
    """Return the folder, in the user's cache; in the temporary folder if that is not writable."""
    return cache.kernel_folder("kernels", Path(__file__).parent)


def is_compiled(dtype: str) -> bool:
    """Return whether `compile_kernels` has run for this dtype."""
    return cache.is_compiled(cache_dir(), dtype)
