"""The decorators of `actors.jit` for the kernels of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from actors.env.kernels.cache import cache_dir
from actors.jit.decorators import Kernel, intrinsic
from actors.jit.decorators import allocation_free as inner

__all__ = ["inner", "intrinsic", "kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function that Python calls when it is first called, and cache it on disk."""
    return cast(F, Kernel(function, cache_dir))
