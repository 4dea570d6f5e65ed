"""`SeedManager`: the seeds of a user's model, in its modules, its optimizer and its followers."""

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
from actors.growth.slots import SlotSpec, find_module, place_of, plot_after, showing


class SeedManager:
    def __init__(
        self,
        model: nn.Module,
        specs: Mapping[str, SlotSpec],
        optimizer: Optimizer,
        ranks: Ranks,
        run_seed: int,
        compiled: bool,
    ) -> None:
        """Raises `UserError`."""
        self.names, self._specs = list(specs), list(specs.values())
        modules = [find_module(model, name) for name in specs]
        self.places: list[SlotShape] = [
            place_of(name, module, spec) for (name, spec), module in zip(specs.items(), modules, strict=True)
        ]
        self._beside = [list(module.parameters()) for module in modules]
        self._model, self._ranks, self._run_seed, self._compiled = model, ranks, run_seed, compiled
        self.plots = dict(enumerate(map(plot_after, [model] * len(specs), self.names, self.places)))
        self._groups = SeedGroups(optimizer)
        self._followers: list[nn.Module] = []
        self.germinations = 0

    @property
    def order(self) -> list[int]:
        """Filled slots in the order of their parameter groups."""
        return self._groups.order

    @property
    def optimizer_steps(self) -> int:
        """Since the last `take_norms`."""
        return self._groups.steps

    def blueprint_name(self, slot: int, blueprint: int) -> str:
        return self.places[slot].family.blueprints[blueprint].name if blueprint >= 0 else ""

    def take_norms(self) -> dict[int, list[float]]:
        return self._groups.take_norms()

    def germinate(self, slot: int, blueprint: int, blend: int) -> None:
        """A new seed, drawn from the run's seed, the same in every process; it takes part once it is shown."""
        rng = stream(self._run_seed, 0, Purpose.SEED_INIT, self.germinations)
        self.germinations += 1
        like = next(iter(self._beside[slot]), next(self._model.parameters()))
        seed = SeedModule(self.places[slot], blueprint, blend, rng, like.dtype, like.device)
        self.plots[slot].seed = seed
        self._groups.add(slot, seed, self._beside[slot], self._specs[slot].lr_scale)
        self._ranks.watch(list(seed.parameters()))
        for model in self._followers:
            self._copy(slot, model)
        self._restructured()

    def clear(self, slots: Iterable[int]) -> None:
        """Their seeds are gone, with their optimizer states."""
        for slot in slots:
            self._groups.remove(slot)
            for model in (self._model, *self._followers):
                plot = plot_after(model, self.names[slot], self.places[slot])
                plot.show(None)
                plot.seed = None
            self._restructured()

    def show(self, alphas: Mapping[int, float]) -> None:
        """Exactly these seeds take part, at these strengths."""
        for model in (self._model, *self._followers):
            for slot, name in enumerate(self.names):
                plot_after(model, name, self.places[slot]).show(alphas.get(slot))

    def showing(self, alphas: Mapping[int, float]) -> AbstractContextManager[None]:
        """The same for a while, in the model alone."""
        return showing(self.plots, alphas)

    def learn(self, loss: Tensor, slots: list[int]) -> None:
        """Add the gradients of the seeds of these slots, and of nothing else."""
        params = [p for s in slots for p in self._groups.params(s)]
        found = torch.autograd.grad(loss, params, allow_unused=True)
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)]
        self._ranks.average(grads)
        for parameter, grad in zip(params, grads, strict=True):
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def follow(self, model: nn.Module) -> None:
        """Raises `UserError` where it is no copy of the model."""
        self._followers.append(model)
        for slot in self.plots:
            self._copy(slot, model)

    def _copy(self, slot: int, model: nn.Module) -> None:
        plot, seed = plot_after(model, self.names[slot], self.places[slot]), self.plots[slot].seed
        plot.seed = copy.deepcopy(seed).to(plot.alpha.device) if seed is not None else None

    def _restructured(self) -> None:
        """A compiled model would run out of the number of times that it may compile again."""
        if self._compiled:
            torch.compiler.reset()
