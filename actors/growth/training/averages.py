"""`averages_of`: averaged copies of a model, found among all live objects."""

from __future__ import annotations

import gc
import logging
import re

from torch import nn
from torch.optim.swa_utils import AveragedModel

from actors.growth.slot_module import CHILD

logger = logging.getLogger(__name__)


def averages_of(model: nn.Module) -> list[nn.Module]:
    """Return the copies of `model` that PyTorch's `AveragedModel`, or a class of another library that is named after
    moving averages, holds as its `module`.

    Their update pairs parameters by position, so that they must grow as the model does.
    """
    found, names = [], _names(model)
    shapes = [p.shape for name, p in model.named_parameters() if name in names]
    for holder in gc.get_objects():
        kind = type(holder)
        if not issubclass(kind, AveragedModel) and not re.search("EMA|Ema|MovingAverage", kind.__name__):
            continue
        copy, averages = getattr(holder, "module", None), getattr(holder, "shadow_params", None)
        if type(copy) is type(model) and copy is not model and list(_names(copy)) == list(names):
            found.append(copy)
        elif isinstance(averages, list) and [getattr(each, "shape", None) for each in averages] == shapes:
            logger.warning(
                "%s averages a fixed list of parameters: go on to give it those that the model had at first, "
                "or average a copy of the model and call follow(copy)",
                kind.__name__,
            )
    return found


def _names(model: nn.Module) -> dict[str, None]:
    return {name: None for name, _ in model.named_parameters() if f".{CHILD}" not in f".{name}"}
