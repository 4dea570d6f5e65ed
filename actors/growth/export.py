"""Export of a grown model, as a module that needs the user's own classes and PyTorch alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from actors.blueprints.family import FAMILIES
from actors.growth.columns.column import WRAPPED, Column
from actors.growth.columns.column_slots import CHILDREN, ColumnSlots, column_slots_of
from actors.growth.columns.grown_model import ARITHMETIC, ExportedSeed, GrownModel, Kept, Seeded, replaced
from actors.growth.slot_module import CHILD, SlotModule
from actors.growth.slots import StreamSlot

ROWS, SPACE = 3, 16  # size of the example input for tracing; the traced operations are independent of both
GROWN = "grown"
"""Attribute of an exported module that says, in plain types, how it is built from the user's factory."""


def exported_model(
    model: nn.Module, slot_modules: Mapping[int, SlotModule], column: Column | None, scales: list[float]
) -> nn.Module:
    """Return a copy of `model` that computes the same function and needs `grown_model.py` alone.

    A module with an active seed becomes `Seeded(module, ExportedSeed)`. The model that columns are
    mixed with becomes a `GrownModel`, or remains what it is where no column is on. Inactive seeds are left out. The
    mode, training or evaluation, is the model's. `scales` are those of the model and of the columns that are on.
    """
    on = [slot_module for slot_module in slot_modules.values() if slot_module.on]
    seeds = {slot_module.name: exported_seed(slot_module) for slot_module in on if isinstance(slot_module, StreamSlot)}
    slots = column_slots_of(model, column) if column is not None else None
    mixed = [slots.slot(i) for i in slots.order] if slots is not None else []
    columns = [_plain(slot.seed) for slot in mixed]
    plain = _plain(model)
    at = "" if column is None else column.model
    grown: dict[str, Any] = {"scale": scales[0], "output": "", "columns": scales[1:], "seeds": {}}
    for name in sorted(seeds, key=lambda n: n.count("."), reverse=True):  # nested modules first
        host, seed = plain.get_submodule(name), seeds[name]
        pair = Seeded(host, seed)
        pair.training = host.training
        plain = replaced(plain, name, pair)
        shapes = {n: list(p.shape) for n, p in seed.named_parameters()}
        grown["seeds"][name] = {"rows": seed.rows, "steps": seed.steps, "shapes": shapes}
    called = plain.get_submodule(at)
    if column is not None and columns:
        grown["output"] = column.output
        alphas = [slot.alpha.detach().clone() for slot in mixed]
        mode = called.training
        called = GrownModel(called, columns, alphas, column.output)
        called.training = mode
        plain = replaced(plain, at, called)
    if not at or all(name.startswith(f"{at}.") for name in seeds):
        grown["seeds"] = {name[len(at) + 1 if at else 0 :]: seed for name, seed in grown["seeds"].items()}
        called.__dict__[GROWN] = grown
    return plain


def _plain(model: Any) -> nn.Module:
    """Return a copy without slots, the hooks that serve them, and accelerate's wrappers."""
    plain: nn.Module = copy.deepcopy(model)
    for module in list(plain.modules()):
        module._modules.pop(CHILD, None)
        module._modules.pop(CHILDREN, None)
        if module.__dict__.pop(WRAPPED, None) is not None:
            del module.__dict__["forward"]
        kinds: Any = (
            (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        )
        for hooks, *flags in kinds:
            for key, hook in list(hooks.items()):
                if isinstance(getattr(hook, "__self__", hook), SlotModule | ColumnSlots | Kept):
                    for each in (hooks, *flags):
                        each.pop(key, None)
    return plain


def exported_seed(slot_module: StreamSlot) -> ExportedSeed:
    """Trace a seed `h -> h`, for any number of rows and any spatial size."""
    seed, dims = slot_module.seed, FAMILIES[slot_module.family].dims
    assert seed is not None
    parameter = next(seed.parameters())
    shape = (ROWS, slot_module.width, *[SPACE + d for d in range(dims)])
    example = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
    tensors = {name: p.detach().clone() for name, p in seed.named_parameters()}

    def join(h: Tensor, alpha: Tensor, *params: Tensor) -> Any:
        return torch.func.functional_call(seed, dict(zip(tensors, params, strict=True)), (h, alpha))

    with torch.no_grad():
        graph = make_fx(join, tracing_mode="symbolic")(example, slot_module.alpha, *tensors.values()).graph
    graph.eliminate_dead_code()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    names = dict(zip(inputs, ("h", "alpha", *tensors), strict=True))
    steps: list[Any] = []
    for node in graph.nodes:
        if node.op == "call_function":
            names[node] = f"step {len(steps) + 1}"
            name = getattr(node.target, "__name__", "")
            function = f"operator.{name}" if name in ARITHMETIC else str(node.target)
            args, kwargs = _data(list(node.args), names), _data(dict(node.kwargs), names)
            steps.append([names[node], function, args, kwargs])
    return ExportedSeed(steps, tensors, slot_module.alpha.detach().clone(), rows=dims == 0)


def _data(value: Any, names: Mapping[Node, str]) -> Any:
    """Return an argument of an operation as plain data, as `ExportedSeed` reads it."""
    match value:
        case Node():
            return {"of": names[value]}
        case torch.dtype() | torch.memory_format() | torch.layout():
            return {"torch": str(value).removeprefix("torch.")}
        case list() | tuple():
            return [_data(element, names) for element in value]
        case dict():
            return {key: _data(element, names) for key, element in value.items()}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return {"torch": str(value)}
