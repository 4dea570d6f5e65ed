"""Where seeds can be in a user's model: `StreamSite` after a module, `ColumnSite` beside the model."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import nn

from actors.growth.columns.column import Column, column_family
from actors.growth.columns.column_slots import column_slots_of
from actors.growth.seed_module import SeedModule
from actors.growth.slot_module import SlotModule
from actors.growth.slots import SlotSpec, find_module, infer_slot_shape, stream_slot_of
from actors.slots.slot_shape import SlotShape, column_slot


class Site(Protocol):
    """One slot of a model and of the copies that follow it."""

    name: str
    neighbours: dict[str, nn.Parameter]  # by name; whose settings in the optimizer a seed here copies
    lr_scale: float
    shape: SlotShape

    def slot_module(self, model: nn.Module) -> SlotModule:
        """Return the slot in the model or a copy of it. Creates it on the first call."""
        ...

    def build(self, blueprint: int, blend: int, rng: np.random.Generator) -> nn.Module:
        """Make a seed that has no effect yet. `rng` draws its parameters."""
        ...


class StreamSite:
    """A slot after the output of a module."""

    def __init__(self, model: nn.Module, name: str, spec: SlotSpec) -> None:
        """Raises `UserError` if there is no such module, or nothing can grow after it."""
        module = find_module(model, name)
        self.name, self.lr_scale = name, spec.lr_scale
        self.shape = infer_slot_shape(name, module, spec)
        self.neighbours = dict(module.named_parameters())
        self._model = model

    def slot_module(self, model: nn.Module) -> SlotModule:
        return stream_slot_of(model, self.name, self.shape)

    def build(self, blueprint: int, blend: int, rng: np.random.Generator) -> nn.Module:
        neighbour = next(iter(self.neighbours.values()), next(self._model.parameters()))
        return SeedModule(self.shape, blueprint, blend, rng, neighbour.dtype, neighbour.device)


class ColumnSite:
    """A slot for a column."""

    def __init__(self, index: int, column: Column, costs: dict[float, int], model: nn.Module) -> None:
        """`costs` are the parameters of columns that can be made, by their scale."""
        self.column, self.index = column, index
        self.name, self.lr_scale = f"column {index + 1}", column.lr_scale
        self.called = find_module(model, column.model)
        self.neighbours = dict(self.called.named_parameters())
        self.shape = column_slot(column_family(), costs.get)

    def slot_module(self, model: nn.Module) -> SlotModule:
        slot_module = column_slots_of(model, self.column)[self.index]
        assert isinstance(slot_module, SlotModule)
        return slot_module

    def build(self, blueprint: int, blend: int, rng: np.random.Generator) -> nn.Module:
        column = self.shape.family.columns[blueprint]
        assert column is not None
        return self.column.build(column.scale, int(rng.integers(2**31)), self.called)
