"""`optimizers_of`: the optimizers that train a model, without what wraps them, if seeds can be trained by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from actors.config import require
from actors.errors import UserError


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
