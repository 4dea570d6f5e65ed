"""Export of a grown model: each active seed becomes a graph of PyTorch operations that loads without Tamiyo."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

from actors.blueprints.family import FAMILIES
from actors.growth.columns import grown_model
from actors.growth.columns.column import Column
from actors.growth.columns.column_slots import CHILDREN, ColumnSlots
from actors.growth.columns.grown_model import GrownColumn
from actors.growth.slot_module import CHILD, SlotModule
from actors.growth.slots import StreamSlot

ROWS, SPACE = 3, 16  # size of the example input for tracing; the traced graph is independent of both


def exported_model(model: nn.Module, slot_modules: Mapping[int, SlotModule], column: Column | None) -> nn.Module:
    """Return a copy of `model` that computes the same function and needs nothing from this package.

    A module with an active seed becomes `nn.Sequential(host=module, seed=graph)`, where the graph is a
    `torch.fx.GraphModule` with the seed's parameters, still trainable. The model that columns were added to becomes a
    `GrownModel(host, columns)`, which carries its own source. Inactive seeds are left out. The mode, training or
    evaluation, is the model's.
    """
    on = [slot_module for slot_module in slot_modules.values() if slot_module.on]
    graphs = {slot_module.name: seed_graph(slot_module) for slot_module in on if isinstance(slot_module, StreamSlot)}
    columns = [_portable_column(slot) for slot in on if isinstance(slot.seed, GrownColumn)]
    plain = copy.deepcopy(model)
    for module in list(plain.modules()):
        module._modules.pop(CHILD, None)
        module._modules.pop(CHILDREN, None)
        _drop_hooks(module)
    for name in sorted(graphs, key=lambda n: n.count("."), reverse=True):  # nested modules first
        host = plain.get_submodule(name)
        pair = nn.Sequential(OrderedDict(host=host, seed=graphs[name]))
        pair.training = host.training
        plain = _replaced(plain, name, pair)
    return _with_columns(plain, column, columns) if column is not None and columns else plain


def _drop_hooks(module: nn.Module) -> None:
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(getattr(hook, "__self__", None), SlotModule | ColumnSlots):
                hooks.pop(key)
                for flags in (
                    module._forward_hooks_with_kwargs,
                    module._forward_hooks_always_called,
                    module._forward_pre_hooks_with_kwargs,
                ):
                    flags.pop(key, None)


def _replaced(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """Return the model with another submodule of that name; "" is the model itself."""
    if not name:
        return new
    model.set_submodule(name, new)
    return model


def _with_columns(plain: nn.Module, column: Column, columns: list[nn.Module]) -> nn.Module:
    called = plain.get_submodule(column.model)
    if column.output:
        inner = portable("GrownOutput", called.get_submodule(column.output))
        inner.training = called.training
        called.set_submodule(column.output, inner)
    grown = portable("GrownModel", called, columns, column.output)
    grown.training = grown.get_submodule("columns").training = called.training
    return _replaced(plain, column.model, grown)


def _portable_column(slot: SlotModule) -> nn.Module:
    column = slot.seed
    assert isinstance(column, GrownColumn)
    gate = None if column.gate is None else column.gate.detach().clone()
    args = copy.deepcopy(column.network), column.output, gate, slot.alpha.detach().clone()
    copied = portable("PortableColumn", *args)
    copied.training = column.training
    return copied


def portable(name: str, *args: Any) -> nn.Module:
    """Make a module of this class of `grown_model`, which is pickled with the text that defines it."""
    source = Path(grown_model.__file__).read_text()
    scope: dict[str, Any] = {"source": source, "__name__": "grown_model"}
    exec(source, scope)
    module: nn.Module = scope[name](*args)
    return module


def seed_graph(slot_module: StreamSlot) -> GraphModule:
    """Trace a seed as a graph `h -> h`, for any number of rows and any spatial size."""
    seed, dims = slot_module.seed, FAMILIES[slot_module.family].dims
    assert seed is not None
    parameter = next(seed.parameters())
    shape = (ROWS, slot_module.width, *[SPACE + d for d in range(dims)])
    example = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
    tensors = {name: p.detach().clone() for name, p in seed.named_parameters()}

    def join(h: Tensor, alpha: Tensor, *params: Tensor) -> Any:
        return torch.func.functional_call(seed, dict(zip(tensors, params, strict=True)), (h, alpha))

    with torch.no_grad():
        traced = make_fx(join, tracing_mode="symbolic")(example, slot_module.alpha, *tensors.values())
    root = nn.Module()
    root.register_buffer("alpha", slot_module.alpha.detach().clone())
    for name, tensor in tensors.items():
        root.register_parameter(name, nn.Parameter(tensor))
    return _bound(traced.graph, root, ["alpha", *tensors])


def _bound(graph: Graph, root: nn.Module, names: list[str]) -> GraphModule:
    """Make `h` the graph's only input; the other inputs become attributes of `root` with these names."""
    graph.set_codegen(CodeGen())
    graph.owning_module = root  # type: ignore[assignment]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for name, node in zip(names, inputs[1:], strict=True):
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))
        graph.erase_node(node)
    return GraphModule(root, graph, "GrownSeed")
