"""`SeedManager`: creates and removes seeds in a user's model, its optimizer, and its copies."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from actors.env.rng import Purpose, stream
from actors.env.slots.growth_state import SlotShape
from actors.growth.groups import SeedGroups
from actors.growth.ranks import Ranks
from actors.growth.seed_module import SeedModule
from actors.growth.slots import SlotSpec, activated, find_module, infer_slot_shape, slot_module_after


class SeedManager:
    """The seeds of one model. Copies of the model that follow it, such as averaged weights, get the same seeds."""

    def __init__(
        self,
        model: nn.Module,
        specs: Mapping[str, SlotSpec],
        optimizer: Optimizer,
        ranks: Ranks,
        run_seed: int,
        compiled: bool,
    ) -> None:
        """`specs` maps names of modules to slots. Raises `UserError` where a slot does not fit."""
        self.names, self._specs = list(specs), list(specs.values())
        modules = [find_module(model, name) for name in specs]
        self.slot_shapes: list[SlotShape] = [
            infer_slot_shape(name, module, spec) for (name, spec), module in zip(specs.items(), modules, strict=True)
        ]
        self._neighbours = [list(module.parameters()) for module in modules]
        self._model, self._ranks, self._run_seed, self._compiled = model, ranks, run_seed, compiled
        self.slot_modules = dict(enumerate(map(slot_module_after, [model] * len(specs), self.names, self.slot_shapes)))
        self._groups = SeedGroups(optimizer)
        self._followers: list[nn.Module] = []
        self.germinations = 0

    @property
    def order(self) -> list[int]:
        """Return filled slots in the order of their parameter groups."""
        return self._groups.order

    @property
    def optimizer_steps(self) -> int:
        """Return the number of optimizer steps since the last `take_norms`."""
        return self._groups.steps

    def blueprint_name(self, slot: int, blueprint: int) -> str:
        """Return the blueprint's name in that slot's family; "" for -1."""
        return self.slot_shapes[slot].family.blueprints[blueprint].name if blueprint >= 0 else ""

    def take_norms(self) -> dict[int, list[float]]:
        """Return and forget gradient norms; see `SeedGroups.take_norms`."""
        return self._groups.take_norms()

    def germinate(self, slot: int, blueprint: int, blend: int) -> None:
        """Create a seed, with the same parameters in every process. It has no effect until it is activated."""
        rng = stream(self._run_seed, 0, Purpose.SEED_INIT, self.germinations)
        self.germinations += 1
        like = next(iter(self._neighbours[slot]), next(self._model.parameters()))
        seed = SeedModule(self.slot_shapes[slot], blueprint, blend, rng, like.dtype, like.device)
        self.slot_modules[slot].seed = seed
        self._groups.add(slot, seed, self._neighbours[slot], self._specs[slot].lr_scale)
        self._ranks.average_on_accumulate(list(seed.parameters()))
        for model in self._followers:
            self._copy(slot, model)
        self._restructured()

    def clear(self, slots: Iterable[int]) -> None:
        """Remove the seeds of these slots together with their optimizer states."""
        for slot in slots:
            self._groups.remove(slot)
            for model in (self._model, *self._followers):
                slot_module = slot_module_after(model, self.names[slot], self.slot_shapes[slot])
                slot_module.activate(None)
                slot_module.seed = None
            self._restructured()

    def activate(self, alphas: Mapping[int, float]) -> None:
        """Switch on exactly the seeds of these slots, at these alphas."""
        for model in (self._model, *self._followers):
            for slot, name in enumerate(self.names):
                slot_module_after(model, name, self.slot_shapes[slot]).activate(alphas.get(slot))

    def activated(self, alphas: Mapping[int, float]) -> AbstractContextManager[None]:
        """Return a context in which `activate(alphas)` holds, for the model itself but not for its copies."""
        return activated(self.slot_modules, alphas)

    def accumulate_gradients(self, loss: Tensor, slots: list[int]) -> None:
        """Add the gradients of `loss` to the parameters of the seeds of these slots only."""
        params = [p for s in slots for p in self._groups.params(s)]
        found = torch.autograd.grad(loss, params, allow_unused=True)
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)]
        self._ranks.average(grads)
        for parameter, grad in zip(params, grads, strict=True):
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def follow(self, model: nn.Module) -> None:
        """Give `model`, a copy of the grown model, the same seeds from now on. Raises `UserError` if it is no copy."""
        self._followers.append(model)
        for slot in self.slot_modules:
            self._copy(slot, model)

    def _copy(self, slot: int, model: nn.Module) -> None:
        slot_module, seed = (
            slot_module_after(model, self.names[slot], self.slot_shapes[slot]),
            self.slot_modules[slot].seed,
        )
        slot_module.seed = copy.deepcopy(seed).to(slot_module.alpha.device) if seed is not None else None

    def _restructured(self) -> None:
        """Reset the compiler after a change of structure: a compiled model has a limited number of recompilations."""
        if self._compiled:
            torch.compiler.reset()
