"""`SeedGroups`: each seed as a parameter group of the user's optimizer, and what its schedulers keep for each group."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from actors.growth.seed_module import SeedModule

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
SCHEDULED_RATES = ("base_lrs", "_last_lr", "max_lrs", "min_lrs")
SCHEDULED = (*SCHEDULED_RATES, "lr_lambdas", "base_momentums", "max_momentums")
"""Lists that PyTorch's schedulers hold with an entry for each parameter group."""


class SeedGroups:
    """A seed's group has the settings of the group whose parameters it grows beside; the others are not touched."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 0  # of the optimizer since `take_norms`
        self._params: dict[int, list[nn.Parameter]] = {}  # by slot, in the optimizer's order
        self._norms: dict[int, list[Tensor]] = {}
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    @property
    def order(self) -> list[int]:
        """Slots in the order of their groups."""
        return list(self._params)

    def params(self, slot: int) -> list[nn.Parameter]:
        return self._params[slot]

    def add(self, slot: int, seed: SeedModule, beside: Sequence[nn.Parameter], lr_scale: float) -> None:
        """`beside` are parameters of the module that it grows after."""
        groups, near = self.optimizer.param_groups, {id(p) for p in beside}
        at = next((i for i, g in enumerate(groups) if any(id(p) in near for p in g["params"])), 0)
        settings = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in groups[at].items()
            if name not in ("params", "param_names")
        }
        for name in RATES:
            if name in settings:
                settings[name] = settings[name] * lr_scale
        named = [(f"slot{slot}.{name}", p) for name, p in seed.named_parameters()]
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
        own, groups = self._params.pop(slot), self.optimizer.param_groups
        at = next(i for i, g in enumerate(groups) if g["params"][0] is own[0])
        for scheduler in self._schedulers():
            for name in SCHEDULED:
                entries = getattr(scheduler, name, None)
                if isinstance(entries, list) and len(entries) == len(groups):
                    del entries[at]
        del groups[at]
        for parameter in own:
            self.optimizer.state.pop(parameter, None)
        self._norms.pop(slot, None)

    def take_norms(self) -> dict[int, list[float]]:
        """Gradient norms at each step of the optimizer since the last time, by slot; where there were gradients."""
        norms = {s: torch.stack(seen).tolist() for s, seen in self._norms.items()}
        self._norms, self.steps = {}, 0
        return norms

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not _closure(args, kwargs):
            self._note(optimizer)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if _closure(args, kwargs):
            self._note(optimizer)  # it is within the step that a closure makes gradients

    def _note(self, optimizer: Optimizer) -> None:
        """What a `GradScaler` multiplied by and leaves to a fused optimizer is divided out."""
        scale = getattr(optimizer, "grad_scale", None)
        for s, own in self._params.items():
            grads = [p.grad for p in own if p.grad is not None]
            if grads:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
                self._norms.setdefault(s, []).append(norm if scale is None else norm / scale)

    def _schedulers(self) -> list[LRScheduler]:
        """Those of this optimizer, which does not know them: they are looked for among all that is alive."""
        return [o for o in gc.get_objects() if issubclass(type(o), LRScheduler) and o.optimizer is self.optimizer]


def _closure(args: Any, kwargs: Any) -> bool:
    """Whether a step of the optimizer was given one: `args` begin with the optimizer itself."""
    return any(callable(a) and not isinstance(a, Optimizer) for a in (*args, *kwargs.values()))
