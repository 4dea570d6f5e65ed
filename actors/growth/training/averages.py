"""`Averages`: averaged copies of a model, found among all live objects."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Iterator
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from actors.growth.slot_module import CHILD

logger = logging.getLogger(__name__)


class Averages:
    """The copies of a model that PyTorch's `AveragedModel`, or a class of another library that is named after moving
    averages, holds as its `module`. Their update pairs parameters by position, so that they must grow with the model.

    A copy that was there when this one was made, did not equal the model then and has not changed since is of another
    run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        copies = (getattr(holder, "module", None) for holder in self._holders())
        self._start = _values(model)
        self._first = WeakKeyDictionary({copy: _values(copy) for copy in copies if self._is_copy(copy)})

    def found(self) -> list[nn.Module]:
        """Return the copies that there are now, and warn of averages that cannot grow."""
        found, shapes = [], [p.shape for p in _parameters(self._model).values()]
        for holder in self._holders():
            copy, listed = getattr(holder, "module", None), getattr(holder, "shadow_params", None)
            if self._is_copy(copy):
                first = self._first.get(copy, self._start)
                if torch.equal(first, self._start) or not torch.equal(first, _values(copy)):
                    found.append(copy)
            elif isinstance(listed, list) and [getattr(each, "shape", None) for each in listed] == shapes:
                logger.warning(
                    "%s averages a fixed list of parameters: go on to give it those that the model had at first, "
                    "or average a copy of the model and call follow(copy)",
                    type(holder).__name__,
                )
        return found

    @staticmethod
    def _holders() -> Iterator[Any]:
        for o in gc.get_objects():
            kind = type(o)
            if issubclass(kind, AveragedModel) or re.search("EMA|Ema|MovingAverage", kind.__name__):
                yield o

    def _is_copy(self, copy: Any) -> TypeGuard[nn.Module]:
        same = type(copy) is type(self._model) and copy is not self._model
        return same and list(_parameters(copy)) == list(_parameters(self._model))


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a model without those of seeds."""
    return {name: p for name, p in model.named_parameters() if f".{CHILD}" not in f".{name}"}


def _values(model: nn.Module) -> Tensor:
    """Return the sum of each parameter, by which a change is noticed."""
    return torch.tensor([float(p.detach().float().sum()) for p in _parameters(model).values()])
