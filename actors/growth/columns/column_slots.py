"""`ColumnSlots`: the column slots of a user's model, and the hooks that mix what grows in them with the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from actors.errors import UserError
from actors.growth.columns.column import WRAPPED, Column
from actors.growth.columns.grown_model import Kept, check_arguments, column_output, keep_output, mixed, tensors_of
from actors.growth.slot_module import CHILD, SlotModule, attachment_point
from actors.growth.slots import find_module
from actors.growth.training.scores import ScoreRecorder

CHILDREN = f"{CHILD}_columns"
OWN = ("training", "forward", WRAPPED, "_compiled_call_impl", "_is_full_backward_hook")
"""What a module that becomes another one keeps of itself, beside its hooks."""


class ColumnSlots(nn.ModuleList):
    """The column slots of one model. They are attached to it and run when it is called."""

    def __init__(self, slots: list[SlotModule], output: str) -> None:
        super().__init__(slots)
        self.output = output  # the module within the model whose output is mixed, "" for the model itself
        self.order: list[int] = []  # of the slots whose columns are on
        self._kept: list[Kept | None] = []  # of these
        self.learns = False  # whether the last of them learns, while all before it is held constant
        self._records_gradients = True  # where that one runs
        self._called: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.recorder: ScoreRecorder | None = None
        self.scored: tuple[int, ...] = ()

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Forward pre-hook of a model within which columns are mixed."""
        self._called = args, kwargs

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of such a model, which also runs if the model fails."""
        self._called = None

    def mix(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Forward hook of the module whose output is mixed. Raises `ValueError` where a column does not fit."""
        if self.output:
            if self._called is None:  # it was called alone
                return None
            args, kwargs = self._called
        if self.recorder is not None and self.recorder.due:
            for tensor in list(tensors_of(output).values())[:1]:
                self.recorder.see(self.scored, tensor)
        if not self.order:
            return None
        check_arguments(kwargs)
        for n, i in enumerate(self.order, start=1):
            if self.learns and n == len(self.order):
                torch.set_grad_enabled(self._records_gradients)
            slot = self.slot(i)
            assert slot.seed is not None
            output = mixed(output, column_output(slot.seed, self._kept[n - 1], args, kwargs), slot.alpha)
        return output

    def activate(self, order: list[int]) -> None:
        """Mix the columns of these slots, in this order, each at its slot's alpha."""
        self.order = [i for i in order if self.slot(i).on]
        seeds = [self.slot(i).seed for i in self.order]
        self._kept = [keep_output(seed, self.output) for seed in seeds if seed is not None]

    def slot(self, index: int) -> SlotModule:
        slot = self[index]
        assert isinstance(slot, SlotModule)
        return slot

    @contextmanager
    def learning(self, index: int, called: nn.Module) -> Iterator[None]:
        """Let the column of a slot learn, which is on at its strength. Without need, the model itself is not run."""
        slot = self.slot(index)
        if slot.strength == 1.0 and not self.output and not isinstance(called, torch.jit.ScriptModule):
            order, self.order = self.order, []
            try:
                with _in_place_of(called, slot.seed):
                    yield
            finally:
                self.order = order
            return
        constant = called.register_forward_pre_hook(self._hold)
        self.learns = True
        try:
            yield
        finally:
            self.learns = False
            constant.remove()
            torch.set_grad_enabled(True)

    def _hold(self, module: nn.Module, args: Any) -> None:
        """Forward pre-hook: what runs from here on is constant, up to the column that learns."""
        self._records_gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(False)


@contextmanager
def _in_place_of(called: nn.Module, network: Any) -> Iterator[None]:
    attributes = called.__dict__
    before = attributes.get("forward")
    attributes["forward"] = network.__call__
    try:
        yield
    finally:
        del attributes["forward"]
        if before is not None:
            attributes["forward"] = before


def column_slots_of(model: nn.Module, column: Column) -> ColumnSlots:
    """Return the column slots of a model. Creates them, and registers their hooks, on the first call."""
    called = find_module(model, column.model)
    attachment = attachment_point(called)
    present = getattr(attachment, CHILDREN, None)
    if isinstance(present, ColumnSlots):
        return present
    target = find_module(called, column.output)
    parameter = next(called.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    slots = ColumnSlots([SlotModule(f"column {i + 1}", device) for i in range(column.count)], column.output)
    attachment.add_module(CHILDREN, slots)
    target.register_forward_hook(slots.mix, with_kwargs=True)
    if column.output:
        called.register_forward_pre_hook(slots.before, with_kwargs=True)
        called.register_forward_hook(slots.after, always_call=True)
    return slots


def replace_model(model: nn.Module, column: Column, index: int) -> None:
    """Let the column of a slot be the model from now on, which then has its parameters and its attributes. Raises
    `UserError` where that is impossible."""
    slots, called = column_slots_of(model, column), find_module(model, column.model)
    network = slots.slot(index).seed
    assert isinstance(network, nn.Module)
    kept = keep_output(network, column.output)
    if isinstance(called, torch.jit.ScriptModule) or (column.output and kept is None):
        raise UserError(f"a {type(network).__name__} cannot take the place of a {type(called).__name__}")
    attachment_point(called)._modules.pop(CHILDREN)
    slots.slot(index).seed = None
    _adopt(called, network)
    attachment_point(called).add_module(CHILDREN, slots)
    if column.output:
        inner = called.get_submodule(column.output)
        for key in [key for key, hook in inner._forward_hooks.items() if hook is kept]:
            del inner._forward_hooks[key]
        inner.register_forward_hook(slots.mix, with_kwargs=True)


def _adopt(module: nn.Module, other: nn.Module) -> None:
    """Give a module the class, submodules, parameters, buffers and attributes of another one. Its hooks, its mode, and
    attributes that the other one lacks are kept. Raises `UserError` if their classes are too different."""
    if type(module) is not type(other):
        try:
            module.__class__ = type(other)
        except TypeError as error:
            raise UserError(
                f"a {type(other).__name__} cannot take the place of a {type(module).__name__}: {error}"
            ) from error
    for name, value in other.__dict__.items():
        if name not in OWN and "_hooks" not in name:
            module.__dict__[name] = dict(value) if name in ("_parameters", "_buffers", "_modules") else value
