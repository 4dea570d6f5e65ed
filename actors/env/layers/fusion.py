"""Pieces of the tensor program that `torch.compile` may fuse: pure chains of elementwise operations and short sums.

What an epoch consists of changes with every action, so that a whole epoch would be compiled again and again; its
pieces never change but for their sizes, which are symbols to the compiler.
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
    """Within it pieces run compiled, where `on`; each is compiled at its first call."""
    token = _compiling.set(on)
    try:
        yield
    finally:
        _compiling.reset(token)


def fusible(function: Callable[P, T]) -> Callable[P, T]:
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
