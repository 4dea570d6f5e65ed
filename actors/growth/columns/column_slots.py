"""`ColumnSlots`: the column slots of a user's model, and the hooks that add what grows in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from actors.growth.columns.column import Column
from actors.growth.columns.column_start import ColumnStart, check_key, check_shape
from actors.growth.columns.grown_model import GrownColumn, added, tensor_key, tensor_of
from actors.growth.slot_module import CHILD, SlotModule, attachment_point
from actors.growth.slots import find_module
from actors.growth.training.scores import ScoreRecorder

CHILDREN = f"{CHILD}_columns"


class ColumnSlots(nn.ModuleList):
    """The column slots of one model. They are attached to it and run when it is called."""

    def __init__(self, slots: list[SlotModule], named_output: bool) -> None:
        super().__init__(slots)
        self._named_output = named_output  # whether columns are added within the model rather than to its output
        self._called: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.start: ColumnStart | None = None
        self.recorder: ScoreRecorder | None = None
        self.scored: tuple[int, ...] = ()

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Forward pre-hook of a model within which columns are added."""
        self._called = args, kwargs

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of such a model, which also runs if the model fails."""
        self._called = None

    def add_columns(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Forward hook of the module to whose output columns are added. Raises `UserError`."""
        if self._named_output:
            if self._called is None:  # it was called alone
                return None
            args, kwargs = self._called
        if self.start is not None and not self.start.known:
            self.start.examine(args, kwargs, output, module.training)
        if self.recorder is not None and (key := tensor_key(output)) is not None:
            self.recorder.see(self.scored, tensor_of(output, key))
        on = [(slot, slot.seed) for slot in self if slot.on and isinstance(slot.seed, GrownColumn)]
        if not on:
            return None
        check_key(output)
        additions = []
        for slot, column in on:
            addition = column(*args, **kwargs)
            check_shape(output, addition)
            additions.append(slot.alpha * addition)
        return added(output, additions)


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
    slots = ColumnSlots([SlotModule(f"column {i + 1}", device) for i in range(column.count)], bool(column.output))
    attachment.add_module(CHILDREN, slots)
    target.register_forward_hook(slots.add_columns, with_kwargs=True)
    if column.output:
        called.register_forward_pre_hook(slots.before, with_kwargs=True)
        called.register_forward_hook(slots.after, always_call=True)
    return slots
