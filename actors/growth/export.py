"""A grown model without us: each seed that takes part as a graph of PyTorch's own operations."""

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

ROWS, SPACE = 3, 16  # of the example that a seed is traced with; neither is remembered


def exported_model(model: nn.Module, plots: Mapping[int, SlotModule]) -> nn.Module:
    """A copy in evaluation or training mode as `model` is, that computes what it computes now.

    A module that has grown becomes `nn.Sequential(host=module, seed=graph)`, the graph a `torch.fx.GraphModule` with
    the seed's parameters, still trainable: it is pickled as source code, and read without this package. Seeds that take
    no part are left out.
    """
    grown = {plot.name: plot for plot in plots.values() if plot.on}
    graphs = {name: seed_graph(plot) for name, plot in grown.items()}
    plain = copy.deepcopy(model)
    for module in list(plain.modules()):
        module._modules.pop(CHILD, None)
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(getattr(hook, "__self__", None), SlotModule):
                del module._forward_hooks[key]
    for name in sorted(graphs, key=lambda n: n.count("."), reverse=True):  # inner ones first
        host = plain.get_submodule(name)
        pair = nn.Sequential(OrderedDict(host=host, seed=graphs[name]))
        pair.training = host.training
        if not name:
            plain = pair
        else:
            plain.set_submodule(name, pair)
    return plain


def seed_graph(plot: SlotModule) -> GraphModule:
    """`h -> h` with the seed blended in, for any number of rows and any size in space."""
    seed, dims = plot.seed, FAMILIES[plot.family].dims
    assert seed is not None
    parameter = next(seed.parameters())
    shape = (ROWS, plot.width, *[SPACE + d for d in range(dims)])
    example = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
    tensors = {name: p.detach().clone() for name, p in seed.named_parameters()}

    def join(h: Tensor, alpha: Tensor, *params: Tensor) -> Any:
        return torch.func.functional_call(seed, dict(zip(tensors, params, strict=True)), (h, alpha))

    with torch.no_grad():
        traced = make_fx(join, tracing_mode="symbolic")(example, plot.alpha, *tensors.values())
    root = nn.Module()
    root.register_buffer("alpha", plot.alpha.detach().clone())
    for name, tensor in tensors.items():
        root.register_parameter(name, nn.Parameter(tensor))
    return _bound(traced.graph, root, ["alpha", *tensors])


def _bound(graph: Graph, root: nn.Module, names: list[str]) -> GraphModule:
    """The graph with `h` as its one input; the others become what `root` has by these names."""
    graph.set_codegen(CodeGen())
    graph.owning_module = root  # type: ignore[assignment]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for name, node in zip(names, inputs[1:], strict=True):
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))
        graph.erase_node(node)
    return GraphModule(root, graph, "GrownSeed")
