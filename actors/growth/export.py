"""Export of a grown model: each active seed becomes a graph of PyTorch operations that loads without Tamiyo."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

from actors.env.blueprints.family import FAMILIES
from actors.growth.slots import CHILD, SlotModule

ROWS, SPACE = 3, 16  # size of the example input for tracing; the traced graph is independent of both


def exported_model(model: nn.Module, slot_modules: Mapping[int, SlotModule]) -> nn.Module:
    """Return a copy of `model` that computes the same function and needs nothing from this package.

    A module with an active seed becomes `nn.Sequential(host=module, seed=graph)`, where the graph is a
    `torch.fx.GraphModule` with the seed's parameters, still trainable. Inactive seeds are left out. The mode, training
    or evaluation, is the model's.
    """
    grown = {slot_module.name: slot_module for slot_module in slot_modules.values() if slot_module.on}
    graphs = {name: seed_graph(slot_module) for name, slot_module in grown.items()}
    plain = copy.deepcopy(model)
    for module in list(plain.modules()):
        module._modules.pop(CHILD, None)
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(getattr(hook, "__self__", None), SlotModule):
                del module._forward_hooks[key]
    for name in sorted(graphs, key=lambda n: n.count("."), reverse=True):  # nested modules first
        host = plain.get_submodule(name)
        pair = nn.Sequential(OrderedDict(host=host, seed=graphs[name]))
        pair.training = host.training
        if not name:
            plain = pair
        else:
            plain.set_submodule(name, pair)
    return plain


def seed_graph(slot_module: SlotModule) -> GraphModule:
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
