"""`averages_of`: averaged copies of a model, found among all live objects."""

from __future__ import annotations

import gc
import re

from torch import nn
from torch.optim.swa_utils import AveragedModel

from actors.growth.slot_module import CHILD


def averages_of(model: nn.Module) -> list[nn.Module]:
    """Return the copies of `model` that PyTorch's `AveragedModel`, or a class of another library that is named after
    moving averages, holds as its `module`.

    Their update pairs parameters by position, so that they must grow as the model does.
    """
    found = []
    for holder in gc.get_objects():
        kind = type(holder)
        if issubclass(kind, AveragedModel) or re.search("EMA|Ema|MovingAverage", kind.__name__):
            copy = getattr(holder, "module", None)
            if type(copy) is type(model) and copy is not model and _names(copy) == _names(model):
                found.append(copy)
    return found


def _names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if f".{CHILD}" not in f".{name}"]
