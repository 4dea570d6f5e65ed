"""What a model and its optimizers must be so that the model can grow; all raise `UserError`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from actors.config import require
from actors.errors import UserError

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


def optimizers_of(given: Any, model: nn.Module) -> list[Optimizer]:
    """Return the optimizers that `given`, one or several, consists of. Raises `UserError`."""
    if given is None:
        raise UserError("no optimizer was given: GrowthController(model, slots, optimizer, ...)")
    optimizers = [_unwrapped(o) for o in (given if isinstance(given, Sequence) else [given])]
    require(len(optimizers) > 0, "the list of optimizers is empty: give those that train the model")
    trained, held = {id(p) for p in model.parameters()}, set[int]()
    for optimizer in optimizers:
        params = {id(p) for group in optimizer.param_groups for p in group["params"]}
        require(
            bool(params & trained),
            f"the {type(optimizer).__name__} holds no parameter of this model: give the optimizer that trains it",
        )
        held |= params
    missing = any(p.requires_grad and p.dim() != 2 and id(p) not in held for p in model.parameters())
    require(
        not (missing and all(isinstance(o, torch.optim.Muon) for o in optimizers)),
        "Muon trains matrices only: give all optimizers of the model as a list, for biases and norms of what grows",
    )
    return optimizers


def _unwrapped(optimizer: Any) -> Optimizer:
    """Return the optimizer that takes the steps: wrappers such as accelerate's, Lookahead or SAM share its groups."""
    while True:
        name = type(optimizer).__name__
        require(isinstance(optimizer, Optimizer), f"the optimizer is of type {name}: give a torch.optim.Optimizer")
        values = [v for v in vars(optimizer).values() if isinstance(v, Optimizer) and v is not optimizer]
        inner = [v for v in values if v.param_groups is optimizer.param_groups]
        if not inner:
            break
        optimizer = inner[0]
    require(
        not isinstance(optimizer, torch.optim.LBFGS),
        "LBFGS treats all parameters as one vector, so that young seeds would change the model: give another optimizer",
    )
    require(
        not values and bool(getattr(type(optimizer).step, "hooked", False)),
        f"{name} runs no step hooks, or wraps an optimizer without sharing its param_groups: "
        "give the torch.optim.Optimizer that takes the steps",
    )
    found: Optimizer = optimizer
    return found
