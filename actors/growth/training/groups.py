"""`SeedGroups`: the parameters of seeds are parameter groups of the user's optimizers; learning rates follow."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from actors.growth.training.live_objects import live_objects

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
FOLLOWED = ("lr", "momentum", "betas", "weight_decay")
"""Settings that schedulers change."""
SCHEDULED_RATES = ("base_lrs", "_last_lr", "max_lrs", "min_lrs")
SCHEDULED = (*SCHEDULED_RATES, "lr_lambdas", "base_momentums", "max_momentums")
"""Attributes of PyTorch's schedulers that are lists with one entry per parameter group."""


@dataclass(frozen=True)
class _Part:
    """Parameters of a seed that are one group of an optimizer. `neighbour` is the first parameter of the group whose
    settings they have; groups are named by parameters, since an optimizer that loads a state makes new ones."""

    optimizer: Optimizer
    params: list[nn.Parameter]
    neighbour: nn.Parameter
    lr_scale: float

    def follow(self, groups: Mapping[int, dict[str, Any]]) -> None:
        """Copy what a scheduler may have changed; `groups` are those of the optimizer, by their first parameter."""
        group, given = groups[id(self.params[0])], groups.get(id(self.neighbour), {})
        for name in FOLLOWED:
            if name not in given or name not in group:
                continue
            value = given[name] * self.lr_scale if name == "lr" else given[name]
            if isinstance(group[name], Tensor):
                group[name].copy_(value)
            else:
                group[name] = value


class SeedGroups:
    """Adds and removes parameter groups of seeds, and holds the gradients of young seeds until the optimizer steps.

    Each parameter of a seed has the settings of the group that holds the model's parameter of the same name or, without
    one, most of its neighbours that are matrices or vectors as it is. Before each step they are copied again, whatever
    scheduled them. The states of other groups are not touched. The gradients of young seeds appear within the step,
    after `GradScaler` and gradient clipping, which therefore treat the model as if the seeds did not exist.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self.steps = 0  # optimizer steps since `take_norms`
        self._parts: dict[int, list[_Part]] = {}  # by slot, in the order of their groups
        self._norms: dict[tuple[int, int], list[Tensor]] = {}  # by slot and number of the optimizer
        self._pending: dict[nn.Parameter, Tensor] = {}
        self._batch: tuple[nn.Parameter, Callable[[], Any]] | None = None  # by whose gradient a minibatch is known
        for number, optimizer in enumerate(self.optimizers):
            optimizer.register_step_pre_hook(partial(self._before_step, number))
        self.optimizers[0].register_step_post_hook(self._after_step)

    @property
    def order(self) -> list[int]:
        """Return filled slots in the order of their parameter groups."""
        return list(self._parts)

    @property
    def waiting(self) -> bool:
        """Return whether there are gradients, but no optimizer has taken a step since `take_norms`."""
        return bool(self._pending) and not self.steps

    def params(self, slot: int) -> list[nn.Parameter]:
        return [p for part in self._parts[slot] for p in part.params]

    def add(self, slot: int, seed: nn.Module, neighbours: Mapping[str, nn.Parameter], lr_scale: float) -> None:
        """Add the groups of a new seed. `neighbours` are the parameters of the module that the seed grows after, or
        that a column is a copy of, by name."""
        homes = self._homes()
        found: dict[tuple[int, int], list[tuple[str, nn.Parameter]]] = {}
        for name, p in seed.named_parameters():
            if p.requires_grad:
                found.setdefault(_home(name, p, neighbours, homes), []).append((name, p))
        self._parts[slot] = []
        for (number, at), named in sorted(found.items()):
            optimizer = self.optimizers[number]
            given = optimizer.param_groups[at]
            settings = {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in given.items()
                if name not in ("params", "param_names")
            }
            for name in RATES:
                if name in settings:
                    settings[name] = settings[name] * lr_scale
            params = [p for _, p in named]
            names = [(f"slot{slot}.{name}", p) for name, p in named]
            for entries, name in _scheduled(optimizer):
                entries.append(entries[at] * lr_scale if name in SCHEDULED_RATES else entries[at])
            optimizer.add_param_group({"params": names if "param_names" in given else params, **settings})
            self._parts[slot].append(_Part(optimizer, params, given["params"][0], lr_scale))

    def remove(self, slot: int) -> None:
        """Remove a seed's groups together with their optimizer states."""
        for part in self._parts.pop(slot):
            groups = part.optimizer.param_groups
            at = next(i for i, g in enumerate(groups) if g["params"] and g["params"][0] is part.params[0])
            for entries, _ in _scheduled(part.optimizer):
                del entries[at]
            del groups[at]
            for parameter in part.params:
                part.optimizer.state.pop(parameter, None)
                self._pending.pop(parameter, None)
        for number in range(len(self.optimizers)):
            self._norms.pop((slot, number), None)

    def accumulate(self, params: Sequence[nn.Parameter], gradients: Sequence[Tensor], whole: bool) -> None:
        """Add gradients of the current minibatch, which the next optimizer step uses.

        Those of a minibatch whose step was skipped are dropped: the model's gradients are then others than before. With
        `whole` false that cannot be told, as where gradients lie in buckets.
        """
        if whole and self._batch is not None:
            known, seen = self._batch[0].grad, self._batch[1]()
            if seen is None or seen is not known:
                self._pending.clear()
        if not self._pending:
            young = set(params)
            every = (p for o in self.optimizers for g in o.param_groups for p in g["params"])
            first = next((p for p in every if p.grad is not None and p not in young), None)
            self._batch = None if first is None else (first, weakref.ref(first.grad))
        for parameter, gradient in zip(params, gradients, strict=True):
            before = self._pending.get(parameter)
            self._pending[parameter] = gradient if before is None else before + gradient

    def take_norms(self) -> dict[int, list[float]]:
        """Return, by slot, the gradient norm of each optimizer step since the last call."""
        self.follow_rates()
        norms: dict[int, list[float]] = {}
        for s in self._parts:
            seen = [self._norms[s, number] for number in range(len(self.optimizers)) if (s, number) in self._norms]
            if seen:
                steps = min(map(len, seen))
                by_optimizer = torch.stack([torch.stack(each[:steps]) for each in seen])
                norms[s] = torch.linalg.vector_norm(by_optimizer, dim=0).tolist()
        self._norms, self.steps = {}, 0
        return norms

    def follow_rates(self) -> None:
        """Give the groups of seeds the learning rates that those of their neighbours have now."""
        if not self._parts:
            return
        groups = {id(g["params"][0]): g for o in self.optimizers for g in o.param_groups if g["params"]}
        for parts in self._parts.values():
            for part in parts:
                part.follow(groups)

    def _homes(self) -> dict[nn.Parameter, tuple[int, int]]:
        """Return where the model's own parameters are: (number of the optimizer, index of the group)."""
        grown = {p for slot in self._parts for p in self.params(slot)}
        return {
            p: (number, at)
            for number, optimizer in enumerate(self.optimizers)
            for at, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if p not in grown
        }

    def _before_step(self, number: int, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Complete the gradients: within a closure, if one computes them inside the step."""
        if not self._parts:
            return None
        self.follow_rates()
        given = next((value for value in (*args[1:], *kwargs.values()) if callable(value)), None)
        if given is None:
            self._complete(number, optimizer)
            return None

        def closure() -> Any:
            loss = given()
            self._complete(number, optimizer)
            return loss

        args = tuple(closure if value is given else value for value in args)
        return args, {name: closure if value is given else value for name, value in kwargs.items()}

    def _after_step(self, *_: Any) -> None:
        self.steps += 1

    def _complete(self, number: int, optimizer: Optimizer) -> None:
        """Move the gradients of young seeds to their parameters, and record gradient norms. The gradients of a fused
        optimizer are still scaled by a `GradScaler`."""
        scale = getattr(optimizer, "grad_scale", None)
        for s, parts in self._parts.items():
            params = [p for part in parts if part.optimizer is optimizer for p in part.params]
            for p in params:
                gradient = self._pending.pop(p, None)
                if gradient is not None:
                    gradient = gradient if scale is None else gradient * scale
                    p.grad = gradient if p.grad is None else p.grad + gradient
            grads = [p.grad for p in params if p.grad is not None]
            if grads:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
                self._norms.setdefault((s, number), []).append(norm if scale is None else norm / scale)


def _home(
    name: str, p: nn.Parameter, neighbours: Mapping[str, nn.Parameter], homes: Mapping[nn.Parameter, tuple[int, int]]
) -> tuple[int, int]:
    """Return where the settings of a seed's parameter are found."""
    parts = name.split(".")
    for start in range(len(parts)):  # a column's names begin with those of what it is held by
        neighbour = neighbours.get(".".join(parts[start:]))
        if neighbour is not None and neighbour in homes and neighbour.dim() == p.dim():
            return homes[neighbour]
    near = [q for q in neighbours.values() if q in homes] or list(homes)
    alike = [q for q in near if _is_matrix(q) == _is_matrix(p)] or near
    held: dict[tuple[int, int], int] = {}
    for q in alike:
        held[homes[q]] = held.get(homes[q], 0) + q.numel()
    return max(held, key=held.__getitem__)


def _is_matrix(p: nn.Parameter) -> bool:
    return sum(size > 1 for size in p.shape) > 1


def _scheduled(optimizer: Optimizer) -> list[tuple[list[Any], str]]:
    """Return the lists, by name, in which PyTorch's schedulers of this optimizer have an entry for each of its groups.

    They are found among all live objects, since an optimizer does not know its schedulers; a scheduler may know an
    optimizer that wraps this one.
    """
    groups = optimizer.param_groups
    schedulers = live_objects(lambda kind: issubclass(kind, LRScheduler))
    live = [s for s in schedulers if s.optimizer.param_groups is groups]
    found = [(getattr(o, name, None), name) for o in live for name in SCHEDULED]
    entries = {id(each): (each, name) for each, name in found if isinstance(each, list)}  # schedulers share some
    return [(each, name) for each, name in entries.values() if len(each) == len(groups)]
