"""`SeedGroups`: each seed is a parameter group of the user's optimizer; learning-rate schedulers follow."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
SCHEDULED_RATES = ("base_lrs", "_last_lr", "max_lrs", "min_lrs")
SCHEDULED = (*SCHEDULED_RATES, "lr_lambdas", "base_momentums", "max_momentums")
"""Attributes of PyTorch's schedulers that are lists with one entry per parameter group."""


class SeedGroups:
    """Adds and removes parameter groups of seeds. A seed's group copies the settings of the group that holds most
    of the parameters of the module it grows after; the states of other groups are not touched."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 0  # optimizer steps since `take_norms`
        self._params: dict[int, list[nn.Parameter]] = {}  # by slot, in the optimizer's order
        self._norms: dict[int, list[Tensor]] = {}
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    @property
    def order(self) -> list[int]:
        """Return filled slots in the order of their parameter groups."""
        return list(self._params)

    def params(self, slot: int) -> list[nn.Parameter]:
        return self._params[slot]

    def add(self, slot: int, seed: nn.Module, neighbours: Sequence[nn.Parameter], lr_scale: float) -> None:
        """Add the group of a new seed. `neighbours` are the parameters of the module that the seed grows after, or
        that a column is a copy of."""
        groups, near = self.optimizer.param_groups, {id(p) for p in neighbours}
        held = [sum(p.numel() for p in g["params"] if id(p) in near) for g in groups]
        at = held.index(max(held))
        settings = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in groups[at].items()
            if name not in ("params", "param_names")
        }
        for name in RATES:
            if name in settings:
                settings[name] = settings[name] * lr_scale
        named = [(f"slot{slot}.{name}", p) for name, p in seed.named_parameters() if p.requires_grad]
        params = named if "param_names" in groups[at] else [p for _, p in named]
        for scheduler in self._schedulers():
            for name in SCHEDULED:
                entries = getattr(scheduler, name, None)
                if isinstance(entries, list) and len(entries) == len(groups):
                    entry = entries[at]
                    entries.append(entry * lr_scale if name in SCHEDULED_RATES else entry)
        self.optimizer.add_param_group({"params": params, **settings})
        self._params[slot] = [p for _, p in named]

    def remove(self, slot: int) -> None:
        """Remove a seed's group together with its optimizer state."""
        removed, groups = self._params.pop(slot), self.optimizer.param_groups
        at = next(i for i, g in enumerate(groups) if g["params"][0] is removed[0])
        for scheduler in self._schedulers():
            for name in SCHEDULED:
                entries = getattr(scheduler, name, None)
                if isinstance(entries, list) and len(entries) == len(groups):
                    del entries[at]
        del groups[at]
        for parameter in removed:
            self.optimizer.state.pop(parameter, None)
        self._norms.pop(slot, None)

    def take_norms(self) -> dict[int, list[float]]:
        """Return, by slot, the gradient norm of each optimizer step since the last call."""
        norms = {s: torch.stack(seen).tolist() for s, seen in self._norms.items()}
        self._norms, self.steps = {}, 0
        return norms

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not _has_closure(args, kwargs):
            self._record_norms(optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if _has_closure(args, kwargs):
            self._record_norms(optimizer)  # a closure computes its gradients inside the step

    def _record_norms(self, optimizer: Optimizer) -> None:
        """Record gradient norms. A fused optimizer receives gradients still scaled by a `GradScaler`: unscale them."""
        scale = getattr(optimizer, "grad_scale", None)
        for s, params in self._params.items():
            grads = [p.grad for p in params if p.grad is not None]
            if grads:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
                self._norms.setdefault(s, []).append(norm if scale is None else norm / scale)

    def _schedulers(self) -> list[LRScheduler]:
        """Return the schedulers of this optimizer, found among all live objects: an optimizer does not know them."""
        return [o for o in gc.get_objects() if issubclass(type(o), LRScheduler) and o.optimizer is self.optimizer]


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether an optimizer step was called with a closure; `args` begin with the optimizer itself."""
    return any(callable(a) and not isinstance(a, Optimizer) for a in (*args, *kwargs.values()))
