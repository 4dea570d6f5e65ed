"""`compiled`: a function under `torch.compile`, with a guarantee that the shape of its data cannot raise.

The compiler makes one graph for all sizes of a dimension that is marked as dynamic, but graphs of their own for the
sizes 0 and 1. Callers mark what changes from call to call and, where several dimensions do so independently, keep
each at 2 or more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import structlog
import torch
from torch import Tensor
from torch._dynamo.decorators import maybe_mark_dynamic
from torch._dynamo.exc import FailOnRecompileLimitHit

BACKEND = "inductor"
P = ParamSpec("P")
T = TypeVar("T")


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """One for all networks, which share its graphs. A break of the graph is an error."""
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, backend=BACKEND)
    return made


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """`function` compiled; as it is for data that would be compiled more often than PyTorch allows."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return cast(T, _compile(function)(*args, **kwargs))
        except FailOnRecompileLimitHit:
            warn_of_eager()
            return function(*args, **kwargs)

    return call


@cache
def warn_of_eager() -> None:
    """Once in a process: what is not compiled computes the same, only slower."""
    structlog.get_logger("tamiyo.policy").warning(
        "policy.compile: PyTorch compiles no more shapes of this data; those that are not compiled run eagerly"
    )


def dynamic(t: Tensor, dim: int = 0) -> Tensor:
    """`t`, whose size in `dim` changes from call to call."""
    if t.shape[dim] > 1:
        maybe_mark_dynamic(t, dim)
    return t
