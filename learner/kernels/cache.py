"""The folder that caches the kernels of this folder (see `actors.jit.cache`)."""

from __future__ import annotations

import functools
from pathlib import Path

import actors.policy.kernels
from actors.jit import cache

PRECISION = "float32"


@functools.cache
def cache_dir() -> Path:
    """Return the folder."""
    functions = Path(actors.policy.kernels.__file__).parent
    return cache.kernel_folder("update", Path(__file__).parent, functions, functions.parent / "gradients")


def is_compiled() -> bool:
    """Return whether the kernels are compiled."""
    return cache.is_compiled(cache_dir(), PRECISION)
