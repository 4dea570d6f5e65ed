"""`check_model`: what a model must be so that it can grow."""

from __future__ import annotations

import logging

import torch.distributed as dist
from torch import nn

from actors.config import require

logger = logging.getLogger(__name__)


def check_model(model: nn.Module, averaged: bool) -> None:
    """Raise `UserError` for a model whose parameters are of unknown size, without values, or in parts.

    `averaged` says whether `DistributedDataParallel` averages its gradients.
    """
    parameters = list(model.parameters())
    lazy = any(isinstance(p, nn.UninitializedParameter) for p in parameters)
    require(not lazy, "the model has lazy layers of unknown size: call it once before you create the controller")
    require(
        not any(p.is_meta for p in parameters),
        "the model is on the device `meta`, without values: materialize it before you create the controller",
    )
    known = (*model.modules(), *(p.data for p in parameters))
    kinds = {kind.__name__ for each in known for kind in type(each).__mro__}  # by name: their modules import slowly
    sharded = kinds & {"DTensor", "FSDPModule", "FullyShardedDataParallel"}
    require(
        not sharded and not any(hasattr(p, "ds_id") for p in parameters),
        "the model's parameters are sharded (FSDP, ZeRO-3 or tensor parallelism): grow it with DistributedDataParallel",
    )
    if not averaged and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        logger.warning(
            "%d processes train, but the model is not wrapped: each will grow in its own way unless you pass the "
            "DistributedDataParallel module",
            dist.get_world_size(),
        )
