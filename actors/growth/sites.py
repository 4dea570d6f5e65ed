"""Where seeds can be in a user's model: `StreamSite` after a module, `ColumnSite` beside the model."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from actors.growth.columns.column import Column, column_family
from actors.growth.columns.column_slots import column_slots_of
from actors.growth.slot_module import SlotModule
from actors.growth.slots import SeedModule, SlotSpec, find_module, infer_slot_shape, stream_slot_of
from actors.slots.slot_shape import column_slot


class StreamSite:
    """A slot after the output of a module, in a model and in the copies that follow it."""

    def __init__(self, model: nn.Module, name: str, spec: SlotSpec) -> None:
        """Raises `UserError` if there is no such module, or nothing can grow after it."""
        module = find_module(model, name)
        self.name, self.lr_scale = name, spec.lr_scale
        self.shape = infer_slot_shape(name, module, spec)
        self.neighbours = dict(module.named_parameters())  # whose settings in the optimizer a seed here copies
        self._model = model

    def slot_module(self, model: nn.Module) -> SlotModule:
        """Return the slot in the model or a copy of it. Creates it on the first call."""
        return stream_slot_of(model, self.name, self.shape)

    def build(self, blueprint: int, blend: int, rng: np.random.Generator) -> nn.Module:
        """Make a seed that has no effect yet. `rng` draws its parameters. It lies in memory as its neighbours do:
        convolutions beside `channels_last` ones would convert their input."""
        neighbour = next(iter(self.neighbours.values()), next(self._model.parameters()))
        seed = SeedModule(self.shape, blueprint, blend, rng, neighbour.dtype, neighbour.device)
        return _in_memory_format(seed, self.neighbours)


class ColumnSite:
    """A slot for a column, with the methods of `StreamSite`."""

    def __init__(self, index: int, column: Column, costs: dict[float, int], model: nn.Module) -> None:
        """`costs` are the parameters of columns that can be made, by their scale."""
        self.column, self.index = column, index
        self.name, self.lr_scale = f"column {index + 1}", column.lr_scale
        self.called = find_module(model, column.model)
        self.neighbours = dict(self.called.named_parameters())
        self.shape = column_slot(column_family(), costs.get)

    def slot_module(self, model: nn.Module) -> SlotModule:
        return column_slots_of(model, self.column).slot(self.index)

    def build(self, blueprint: int, blend: int, rng: np.random.Generator) -> nn.Module:
        column = self.shape.family.columns[blueprint]
        assert column is not None
        seed = self.column.build(column.scale, int(rng.integers(2**31)), self.called)
        return _in_memory_format(seed, self.neighbours)


def _in_memory_format(seed: nn.Module, neighbours: dict[str, nn.Parameter]) -> nn.Module:
    for dims, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        weights = [p for p in neighbours.values() if p.dim() == dims and not p.is_contiguous()]
        if weights and all(p.is_contiguous(memory_format=memory_format) for p in weights):
            seed.to(memory_format=memory_format)  # type: ignore[call-overload]
    return seed
