"""`compiled`: `torch.compile` with a fallback to eager execution when the recompilation limit is reached.

PyTorch compiles one graph for all sizes of a dimension that is marked as dynamic, but separate graphs for the sizes 0
and 1. Callers mark dimensions whose size varies and, if several vary independently, keep each of them at 2 or more.

The compiler is imported by the first call that uses it: it takes as long to import as the rest of PyTorch, and most
processes never compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

BACKEND = "inductor"
P = ParamSpec("P")
T = TypeVar("T")


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile once for all networks, which share the graphs. A graph break is an error."""
    compiled_function: Callable[..., Any] = torch.compile(function, fullgraph=True, backend=BACKEND)
    return compiled_function


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile `function`; calls that would exceed PyTorch's recompilation limit run eagerly."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        from torch._dynamo.exc import FailOnRecompileLimitHit

        try:
            return cast(T, _compile(function)(*args, **kwargs))
        except FailOnRecompileLimitHit:
            warn_eager_fallback()
            return function(*args, **kwargs)

    return call


@cache
def warn_eager_fallback() -> None:
    """Warn once per process that some calls run eagerly: same results, but slower."""
    import structlog  # its import takes as long as that of the whole policy

    structlog.get_logger("tamiyo.policy").warning(
        "policy.compile: PyTorch's recompilation limit is reached; further input shapes run eagerly"
    )


def dynamic(t: Tensor, dim: int = 0) -> Tensor:
    """Mark the size of `t` in `dim` as dynamic and return `t`."""
    if t.shape[dim] > 1:
        from torch._dynamo.decorators import maybe_mark_dynamic

        maybe_mark_dynamic(t, dim)
    return t
