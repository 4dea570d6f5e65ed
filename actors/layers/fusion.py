"""`fusible`: marks small pure functions that `torch.compile` may fuse (elementwise operations and short sums).

The structure of an epoch changes with every action, so compiling whole epochs would never end. These functions change
only in the sizes of their arguments, which are symbolic to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
_compiling: ContextVar[bool] = ContextVar("compiling", default=False)


@contextmanager
def fusing(on: bool) -> Iterator[None]:
    """Run fusible functions compiled within this context if `on`; each is compiled at its first call."""
    token = _compiling.set(on)
    try:
        yield
    finally:
        _compiling.reset(token)


def fusible(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function with `torch.compile` when it is called within `fusing(True)`."""
    compiled: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _compiling.get():
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=True))
        out: T = compiled[0](*args, **kwargs)
        return out

    return call
