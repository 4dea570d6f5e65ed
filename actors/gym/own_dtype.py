"""`OwnDtype`: keeps PyTorch's default dtype as environments set it from everything else in the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from gymnasium.vector import VectorEnv, VectorWrapper

T = TypeVar("T")


class OwnDtype(VectorWrapper):
    """A vector environment for which PyTorch's default dtype is what it last set itself, and only while it runs."""

    def __init__(self, make: Callable[[], VectorEnv[Any, Any, Any]]) -> None:
        self._theirs = torch.get_default_dtype()
        super().__init__(self._run(make))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._run(lambda: self.env.reset(seed=seed, options=options))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._run(lambda: self.env.step(actions))

    def close(self, **kwargs: Any) -> None:
        self._run(lambda: self.env.close(**kwargs))

    def _run(self, call: Callable[[], T]) -> T:
        ours = torch.get_default_dtype()
        if self._theirs is not ours:
            torch.set_default_dtype(self._theirs)
        try:
            return call()
        finally:
            self._theirs = torch.get_default_dtype()
            if self._theirs is not ours:
                torch.set_default_dtype(ours)
