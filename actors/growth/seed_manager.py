"""`SeedManager`: creates and removes seeds in a user's model, its optimizer, and its copies."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from actors.config import require
from actors.errors import UserError
from actors.growth.columns.column import Column, column_family
from actors.growth.columns.column_slots import column_slots_of, replace_model
from actors.growth.sites import ColumnSite, StreamSite
from actors.growth.slot_module import SlotModule
from actors.growth.slots import SlotSpec, StreamSlot, find_module
from actors.growth.training.averages import Averages
from actors.growth.training.gradients import ShadowGradients
from actors.growth.training.groups import SeedGroups
from actors.growth.training.isolation import unscaled_losses, without_side_effects
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
        self._host = [p for p in model.parameters() if p.requires_grad]
        self._sites: list[StreamSite | ColumnSite] = [StreamSite(model, name, spec) for name, spec in specs.items()]
        self._column = column
        self.called = model if column is None else find_module(model, column.model)
        if column is not None:
            find_module(self.called, column.output)
            costs = self._costs(column, model)
            self._sites += [ColumnSite(i, column, costs, model) for i in range(column.count)]
        self._columns = {s: site for s, site in enumerate(self._sites) if isinstance(site, ColumnSite)}
        self._model, self._ranks, self._run_seed, self.compiled = model, ranks, run_seed, compiled
        self.names = [site.name for site in self._sites]
        self.slot_shapes: list[SlotShape] = [site.shape for site in self._sites]
        self.slot_modules = {s: site.slot_module(model) for s, site in enumerate(self._sites)}
        require(
            all(slot_module.seed is None for slot_module in self.slot_modules.values()),
            "another controller has grown this model: create the model again, and give its state to load_state_dict",
        )
        self.groups = SeedGroups(optimizers)
        self._gradients = ShadowGradients(model)
        self._averages, self._followers = Averages(model), list[nn.Module]()
        self._alphas: Mapping[int, float] = {}  # of the seeds that are on
        self._tried: set[int] = set()  # slots whose columns were found to fit
        self._silent: set[int] = set()  # slots whose columns were reported to learn nothing
        self.partial: set[int] = set()  # slots of columns with parameters that the loss does not depend on
        self._scales: dict[int, float] = {}  # of columns, in multiples of the model's width
        self.adopted: int | None = None  # the slot of the column that has become the model
        self.germinations = 0
        self.passes = 0  # of the model beside its training, other than to train seeds in the stream
        self.recorder = ScoreRecorder([] if compiled else self._host, optimizers[-1])
        if not compiled:
            self._watch()
        if column is not None and ranks.size > 1:
            optimizers[0].register_step_pre_hook(lambda *_: ranks.share_buffers(self._unknown_to_ddp()))

    @staticmethod
    def _costs(column: Column, model: nn.Module) -> dict[float, int]:
        """Return the parameters of columns, by their scale. Raises `UserError` if more than one cannot be made."""
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
        return costs

    def report_forbidden_columns(self, limit: int) -> None:
        """Say which columns are too large for a budget of so many parameters, and can never grow."""
        for shape in [site.shape for site in self._columns.values()][:1]:  # the others are like it
            costs = {shape.family.names[i]: cost for i, cost in enumerate(shape.costs) if cost is not None}
            forbidden = [f"{name} ({cost:,} parameters)" for name, cost in costs.items() if cost > limit]
            if forbidden:
                logger.warning(
                    "the budget of %s added parameters forbids %s: raise max_added_parameters, and "
                    "max_isolated_parameters", f"{limit:,}", ", ".join(forbidden),
                )  # fmt: skip

    def _watch(self) -> None:
        """Let the slots look at the model's forward passes."""
        for s, slot_module in self.slot_modules.items():
            if isinstance(slot_module, StreamSlot):
                slot_module.recorder, slot_module.index = self.recorder, s
        if self._column is not None:
            columns = column_slots_of(self._model, self._column)
            columns.recorder, columns.scored = self.recorder, tuple(self._columns)

    def _unknown_to_ddp(self) -> list[nn.Module]:
        """Return the columns that exist, and the one that has become the model."""
        seeds = [seed for s in self._columns if (seed := self.slot_modules[s].seed) is not None]
        return seeds if self.adopted is None else [self.called, *seeds]

    def germinate(self, slot: int, blueprint: int, blend: int) -> None:
        """Create a seed, with the same parameters in every process. It has no effect until it is activated."""
        self._follow_averages()
        rng = stream(self._run_seed, 0, Purpose.SEED_INIT, self.germinations)
        self.germinations += 1
        site = self._sites[slot]
        seed = site.build(blueprint, blend, rng)
        seed.train(self._model.training)
        self.slot_modules[slot].seed = seed
        column = site.shape.family.columns[blueprint]
        self._scales[slot] = 1.0 if column is None else column.scale
        self.groups.add(slot, seed, site.neighbours, site.lr_scale)
        self._ranks.average_on_accumulate(self.groups.params(slot))
        for model in self._followers:
            self._copy(slot, model)
        self._restructured()

    def clear(self, slots: Collection[int]) -> None:
        """Remove the seeds of these slots together with their optimizer states."""
        if not slots:
            return
        self._follow_averages()
        for slots_of in (self._tried, self._silent, self.partial):
            slots_of.difference_update(slots)
        for slot in slots:
            self.groups.remove(slot)
            for model in self._models():
                if (slot_module := self._slot_module(slot, model)) is not None:
                    slot_module.activate(None)
                    slot_module.seed = None
        self._restructured()

    def adopt(self, slot: int) -> None:
        """Let the column of a slot become the model, which it has replaced, where that is possible: the host no longer
        runs, and its optimizer state is dropped."""
        assert self._column is not None
        if slot in self.partial:
            logger.info("%s takes the model's place up to %s only", self.names[slot], self._column.output)
            return
        self._follow_averages()
        try:
            for model in self._models():
                replace_model(model, self._column, self._columns[slot].index)
        except UserError as error:
            logger.warning("the model runs on, without effect: %s", error)
            return
        self.adopted = slot
        alive = {id(p) for p in self._model.parameters()}
        for parameter in self._host:
            if id(parameter) not in alive:
                parameter.requires_grad_(False).grad = None
                for optimizer in self.groups.optimizers:
                    optimizer.state.pop(parameter, None)
        self._ranks.leave_ddp([p for p in self._host if id(p) in alive])
        if not self.compiled:
            self.recorder.watch([p for p in self._model.parameters() if p.requires_grad])
        self._restructured()

    def activate(self, alphas: Mapping[int, float]) -> None:
        """Switch on exactly the seeds of these slots, at these alphas. Columns are mixed in the order given."""
        for model in self._models():
            self._switch(model, alphas)

    def _switch(self, model: nn.Module, alphas: Mapping[int, float]) -> None:
        if model is self._model:
            self._alphas = dict(alphas)
        for slot in range(len(self._sites)):
            if (slot_module := self._slot_module(slot, model)) is not None:
                slot_module.activate(alphas.get(slot))
        if self._column is not None:
            order = [self._columns[s].index for s in alphas if s in self._columns]
            column_slots_of(model, self._column).activate(order)

    def scales(self) -> list[float]:
        """Return the widths of the model and of each column that is mixed with it, in multiples of its first one."""
        mixed = [self._scales[s] for s in self._alphas if s in self._columns and self.slot_modules[s].on]
        return [1.0 if self.adopted is None else self._scales[self.adopted], *mixed]

    @contextmanager
    def activated(self, alphas: Mapping[int, float]) -> Iterator[None]:
        """Enter a context in which `activate(alphas)` holds, for the model itself but not for its copies."""
        before = self._alphas
        self._switch(self._model, alphas)
        try:
            yield
        finally:
            self._switch(self._model, before)

    def train_young(
        self,
        loss: Callable[[], Tensor],
        blended: Mapping[int, float],
        learners: Mapping[int, float],
        scaler: GradScaler | None = None,
    ) -> None:
        """Add the gradients of young seeds, whose strengths are `learners`. Nothing else changes. Seeds in the stream
        run together; each column runs with its own output, or with a mix, in the place of the model's."""
        in_stream = {s: strength for s, strength in learners.items() if s not in self._columns}
        if in_stream:
            with self._isolated(in_stream), self.activated({**blended, **in_stream}):
                self._accumulate(loss(), list(in_stream), scaler)
        for slot in [s for s in learners if s in self._columns]:
            column, index = self._columns[slot].column, self._columns[slot].index
            self.passes += learners[slot] < 1.0 or bool(column.output)
            with self._isolated([slot]), self.activated({**blended, slot: learners[slot]}):
                learning = column_slots_of(self._model, column).learning(index, self.called)
                with learning, self._first_time(slot):
                    value = loss()
                self._accumulate(value, [slot], scaler)

    def host_loss(self, loss: Callable[[], Tensor]) -> Tensor:
        """Return the loss of the model as it is, without effect on anything."""
        with self.beside(self._alphas):
            return loss().detach()

    @contextmanager
    def beside(self, alphas: Mapping[int, float]) -> Iterator[None]:
        """Enter a context in which the model runs once with the seeds of these slots, without effect on anything."""
        self.passes += 1
        with self._isolated(()), self.activated(alphas), unscaled_losses():
            yield

    @contextmanager
    def _isolated(self, learners: Iterable[int]) -> Iterator[None]:
        """Enter a context in which the model can run without that anything but these seeds changes."""
        seeds = [seed for s in learners if (seed := self.slot_modules[s].seed) is not None]
        with ExitStack() as stack:
            stack.enter_context(self._ranks.no_sync())
            stack.enter_context(without_side_effects(self._model, seeds))
            stack.enter_context(torch.set_grad_enabled(bool(seeds)))
            stack.enter_context(self.recorder.paused())
            if self.compiled:  # what runs for a few epochs only is not worth a graph
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.callback(torch.clear_autocast_cache)  # of casts without gradient
            yield

    @contextmanager
    def _first_time(self, slot: int) -> Iterator[None]:
        """Say in one line what is wrong if a column fails, or changes its input, when it runs for the first time."""
        if slot in self._tried:
            yield
            return
        read: list[tuple[Tensor, int]] = []

        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            tensors = (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and not t.is_inference())
            read.extend((t, t._version) for t in tensors)

        handle = self.called.register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{self.names[slot]} cannot be called in the place of the model: {reason}") from error
        finally:
            handle.remove()
        require(
            all(t._version == version for t, version in read),
            "the model changes its input in place, which its columns read as well: let it work on a copy",
        )
        self._tried.add(slot)

    def _accumulate(self, loss: Tensor, slots: list[int], scaler: GradScaler | None) -> None:
        """Add the gradients of `loss` to those that the seeds of these slots, and no others, have in the next step."""
        params = [p for s in slots for p in self.groups.params(s)]
        found = self._gradients(loss, params, scaler) if loss.requires_grad else [None] * len(params)
        self._report_silence(slots, {id(p) for p, g in zip(params, found, strict=True) if g is not None})
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)]
        self._ranks.average(grads)
        self.groups.accumulate(params, grads, whole=self._ranks.size == 1)

    def _report_silence(self, slots: list[int], reached: set[int]) -> None:
        for s in slots:
            unreached = sum(id(p) not in reached for p in self.groups.params(s))
            if not unreached or s not in self._columns:
                continue
            if self._columns[s].column.output:
                self.partial.add(s)
            if unreached == len(self.groups.params(s)) and s not in self._silent:
                self._silent.add(s)
                logger.warning(
                    "the loss does not depend on %s: name the module whose output the loss is computed from by "
                    "Column(output=...), or the network that is called by Column(model=...)",
                    self.names[s],
                )

    def follow(self, model: nn.Module) -> None:
        """Give `model`, a copy of the grown model, the same seeds from now on. Raises `UserError` if it is no copy."""
        require(
            self.adopted is None or _shapes(model) == _shapes(self._model),
            "a column has replaced the model, and this copy is one of the old: copy the model again",
        )
        self._followers.append(model)
        for slot, slot_module in self.slot_modules.items():
            present = self._slot_module(slot, model)
            if present is not None and _shapes(present.seed) != _shapes(slot_module.seed):  # else it is an average too
                self._copy(slot, model)

    def _follow_averages(self) -> None:
        for average in self._averages.found():
            followed = any(average is model for model in self._followers)
            if not followed and (self.adopted is None or _shapes(average) == _shapes(self._model)):
                self.follow(average)

    def _copy(self, slot: int, model: nn.Module) -> None:
        slot_module, seed = self._slot_module(slot, model), self.slot_modules[slot].seed
        if slot_module is not None:
            device = slot_module.alpha.device
            slot_module.seed = None if seed is None else copy.deepcopy(seed).to(device).train(model.training)

    def _models(self) -> tuple[nn.Module, ...]:
        return self._model, *self._followers

    def _slot_module(self, slot: int, model: nn.Module) -> SlotModule | None:
        """Return a slot of the model or of a copy; None if it was in the stream of a model that a column replaced."""
        gone = self.adopted is not None and slot not in self._columns
        return None if gone else self._sites[slot].slot_module(model)

    def _restructured(self) -> None:
        """Let averages follow a change of structure, and reset the compiler, whose recompilations are limited."""
        self._averages.regrow()
        if self.compiled:
            torch.compiler.reset()


def _shapes(module: nn.Module | None) -> list[torch.Size]:
    return [] if module is None else [p.shape for p in module.parameters()]
