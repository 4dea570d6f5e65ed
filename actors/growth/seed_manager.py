"""`SeedManager`: creates and removes seeds in a user's model, its optimizer, and its copies."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from actors.config import require
from actors.errors import UserError
from actors.growth.columns.column import Column, column_family
from actors.growth.columns.column_slots import ColumnSlots, column_slots_of
from actors.growth.columns.column_start import ColumnStart
from actors.growth.sites import ColumnSite, Site, StreamSite
from actors.growth.slot_module import activated
from actors.growth.slots import SlotSpec, StreamSlot, find_module
from actors.growth.training.averages import Averages
from actors.growth.training.gradients import ShadowGradients
from actors.growth.training.groups import SeedGroups
from actors.growth.training.isolation import without_side_effects
from actors.growth.training.memory_format import use_memory_format
from actors.growth.training.ranks import Ranks
from actors.growth.training.scores import ScoreRecorder
from actors.rng import Purpose, stream
from actors.slots.slot_shape import SlotShape

logger = logging.getLogger(__name__)


class SeedManager:
    """The seeds of one model. Copies of the model that follow it, such as averaged weights, get the same seeds."""

    def __init__(
        self,
        model: nn.Module,
        specs: Mapping[str, SlotSpec],
        column: Column | None,
        optimizers: Sequence[Optimizer],
        ranks: Ranks,
        run_seed: int,
        compiled: bool,
    ) -> None:
        """`specs` maps names of modules to slots. Raises `UserError` where a slot or a column does not fit."""
        host = [p for p in model.parameters() if p.requires_grad]
        self._sites: list[Site] = [StreamSite(model, name, spec) for name, spec in specs.items()]
        self._start = None if column is None else self._add_columns(column, model)
        self._model, self._ranks, self._run_seed, self._compiled = model, ranks, run_seed, compiled
        self.names = [site.name for site in self._sites]
        self.slot_modules = {s: site.slot_module(model) for s, site in enumerate(self._sites)}
        require(
            all(slot_module.seed is None for slot_module in self.slot_modules.values()),
            "another controller has grown this model: create the model again, and give its state to load_state_dict",
        )
        self._groups = SeedGroups(optimizers)
        self._gradients = ShadowGradients(model)
        self._averages, self._followers = Averages(model), list[nn.Module]()
        self._silent: set[int] = set()  # slots whose columns were reported to learn nothing
        self.germinations = 0
        self._recorder = None if compiled else ScoreRecorder(host, optimizers[-1])
        self._watch()
        if self._start is not None and ranks.size > 1:
            optimizers[0].register_step_pre_hook(lambda *_: ranks.share_buffers(self._columns()))

    def _add_columns(self, column: Column, model: nn.Module) -> ColumnStart:
        find_module(find_module(model, column.model), column.output)
        scales = sorted({c.scale for c in column_family().columns if c is not None})
        costs, refused = dict[float, int](), list[UserError]()
        for scale in scales:
            try:
                costs[scale] = column.count_params(scale, model)
            except UserError as error:  # such as half of a width that no number of heads divides any more
                refused.append(error)
        if len(refused) > 1 or not costs:
            raise refused[0]
        if refused:
            logger.warning("%s; columns of that size are not offered", refused[0])
        tried = min((scale for scale in costs if scale != 1.0), key=costs.__getitem__)
        start = ColumnStart(column, find_module(model, column.model), tried)
        self._sites += [ColumnSite(i, start, costs, model) for i in range(column.count)]
        return start

    def _watch(self) -> None:
        """Let the slots look at the model's forward passes. A compiled model is not looked at."""
        for s, slot_module in self.slot_modules.items():
            if isinstance(slot_module, StreamSlot):
                slot_module.recorder, slot_module.index = self._recorder, s
        if self._start is not None:
            columns = self._column_slots(self._start)
            columns.recorder = self._recorder
            columns.scored = tuple(s for s, site in enumerate(self._sites) if isinstance(site, ColumnSite))
            columns.start = None if self._compiled else self._start

    def _column_slots(self, start: ColumnStart) -> ColumnSlots:
        return column_slots_of(self._model, start.column)

    def _columns(self) -> list[nn.Module]:
        """Return the columns that exist."""
        sites = enumerate(self._sites)
        seeds = [self.slot_modules[s].seed for s, site in sites if isinstance(site, ColumnSite)]
        return [seed for seed in seeds if seed is not None]

    @property
    def slot_shapes(self) -> list[SlotShape]:
        """Return what can grow in each slot. It changes once it is known how columns start."""
        return [site.shape for site in self._sites]

    @property
    def columns_gated(self) -> bool | None:
        """Return whether columns start with a gate; None while that is unknown."""
        return None if self._start is None else self._start.gated

    @columns_gated.setter
    def columns_gated(self, gated: bool | None) -> None:
        if self._start is not None:
            self._start.gated = gated

    def examine_call(self, outer: nn.Module) -> None:
        """Find out at the first call of a compiled model how columns start, where its hooks run outside its graph."""
        start = self._start
        if start is None or start.column.output or start.column.model or outer is self._model:
            return

        def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            handle.remove()
            if not start.known:
                start.examine(args, kwargs, output, self._model.training)

        handle = outer.register_forward_hook(look, with_kwargs=True)

    @property
    def order(self) -> list[int]:
        """Return filled slots in the order of their parameter groups."""
        return self._groups.order

    @property
    def optimizer_steps(self) -> int:
        """Return the number of optimizer steps since the last `take_norms`."""
        return self._groups.steps

    @property
    def waiting(self) -> bool:
        """Return whether gradients of young seeds wait for an optimizer that takes no steps."""
        return self._groups.waiting

    def blueprint_name(self, slot: int, blueprint: int) -> str:
        """Return the blueprint's name in that slot's family; "" for -1."""
        return self._sites[slot].shape.family.name_of(blueprint) if blueprint >= 0 else ""

    def take_norms(self) -> dict[int, list[float]]:
        """Return and forget gradient norms; see `SeedGroups.take_norms`."""
        return self._groups.take_norms()

    def take_scores(self) -> dict[int, float]:
        """Return and forget what a seed in each slot could do; see `ScoreRecorder`."""
        return {} if self._recorder is None else self._recorder.take()

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of optimizer steps of the last whole epoch, by which the recorder finds an epoch's end."""
        return 0 if self._recorder is None else self._recorder.steps_per_epoch

    @steps_per_epoch.setter
    def steps_per_epoch(self, steps: int) -> None:
        if self._recorder is not None:
            self._recorder.steps_per_epoch = steps

    def germinate(self, slot: int, blueprint: int, blend: int) -> None:
        """Create a seed, with the same parameters in every process. It has no effect until it is activated."""
        for average in self._averages.found():
            if not any(average is model for model in self._followers):
                self.follow(average)
        rng = stream(self._run_seed, 0, Purpose.SEED_INIT, self.germinations)
        self.germinations += 1
        site = self._sites[slot]
        seed = site.build(blueprint, blend, rng)
        seed.train(self._model.training)
        use_memory_format(seed, list(site.neighbours.values()))
        self.slot_modules[slot].seed = seed
        self._groups.add(slot, seed, site.neighbours, site.lr_scale)
        self._ranks.average_on_accumulate(self._groups.params(slot))
        for model in self._followers:
            self._copy(slot, model)
        self._restructured()

    def clear(self, slots: Iterable[int]) -> None:
        """Remove the seeds of these slots together with their optimizer states."""
        for slot in slots:
            self._groups.remove(slot)
            self._silent.discard(slot)
            for model in (self._model, *self._followers):
                slot_module = self._sites[slot].slot_module(model)
                slot_module.activate(None)
                slot_module.seed = None
            self._restructured()

    def activate(self, alphas: Mapping[int, float]) -> None:
        """Switch on exactly the seeds of these slots, at these alphas."""
        for model in (self._model, *self._followers):
            for slot, site in enumerate(self._sites):
                site.slot_module(model).activate(alphas.get(slot))

    def activated(self, alphas: Mapping[int, float]) -> AbstractContextManager[None]:
        """Return a context in which `activate(alphas)` holds, for the model itself but not for its copies."""
        return activated(self.slot_modules, alphas)

    @contextmanager
    def shadow_pass(self, blended: Mapping[int, float], learners: Mapping[int, float]) -> Iterator[None]:
        """Enter the state in which young seeds learn: they are switched on, and nothing but they will change."""
        seeds = [seed for s in learners if (seed := self.slot_modules[s].seed) is not None]
        with ExitStack() as stack:
            stack.enter_context(self._ranks.no_sync())
            stack.enter_context(without_side_effects(self._model, seeds))
            stack.enter_context(self.activated({**blended, **learners}))
            stack.enter_context(torch.enable_grad())
            if self._recorder is not None:
                stack.enter_context(self._recorder.paused())
            yield

    def accumulate_gradients(self, loss: Tensor, slots: list[int], scaler: GradScaler | None) -> None:
        """Add the gradients of `loss` to those that the seeds of these slots, and no others, have in the next step."""
        params = [p for s in slots for p in self._groups.params(s)]
        found = self._gradients(loss, params, scaler)
        self._report_silence(slots, {id(p) for p, g in zip(params, found, strict=True) if g is not None})
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)]
        self._ranks.average(grads)
        self._groups.accumulate(params, grads, whole=self._ranks.size == 1)

    def _report_silence(self, slots: list[int], reached: set[int]) -> None:
        for s in slots:
            silent = not any(id(p) in reached for p in self._groups.params(s))
            if silent and s not in self._silent and isinstance(self._sites[s], ColumnSite):
                self._silent.add(s)
                logger.warning(
                    "the loss does not depend on %s: name the module whose output the loss is computed from by "
                    "Column(output=...), or the network that is called by Column(model=...)",
                    self.names[s],
                )

    def follow(self, model: nn.Module) -> None:
        """Give `model`, a copy of the grown model, the same seeds from now on. Raises `UserError` if it is no copy."""
        self._followers.append(model)
        for slot in self.slot_modules:
            self._copy(slot, model)

    def _copy(self, slot: int, model: nn.Module) -> None:
        slot_module, seed = self._sites[slot].slot_module(model), self.slot_modules[slot].seed
        slot_module.seed = (
            copy.deepcopy(seed).to(slot_module.alpha.device).train(model.training) if seed is not None else None
        )

    def _restructured(self) -> None:
        """Reset the compiler after a change of structure: a compiled model has a limited number of recompilations."""
        if self._compiled:
            torch.compiler.reset()
