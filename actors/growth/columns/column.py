"""`Column`: networks of the user's own architecture that can grow beside the user's model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from actors.blueprints.blends import unit_gate_logits
from actors.blueprints.blueprint import NOOP
from actors.blueprints.family import FAMILIES, Family
from actors.config import require
from actors.errors import UserError
from actors.growth.columns.grown_model import keep_output
from actors.growth.slot_module import attachment_point
from actors.growth.training.isolation import random_numbers_kept
from actors.slots.growth_state import ColumnLoss

WRAPPED = "_original_forward"
"""Where accelerate keeps a module's forward if it has wrapped it, to enter mixed precision."""


@dataclass(frozen=True)
class Column:
    """Lets columns grow: independent networks of the model's own architecture whose outputs are mixed with the model's.

    A column reads the model's input, and learns beside the model before it joins it. Raises `UserError` for a value
    that is out of range.
    """

    factory: Callable[[float], nn.Module]
    """`factory(scale)` returns a new network of the model's architecture at `scale` times its width. `scale` is 0.5, 1,
    2 or 4, or that of a registered `ColumnBlueprint`. It is called with whatever the model is called with, and returns
    an output of the same kind and shape."""
    count: int = 2
    """Most columns at a time."""
    output: str = ""
    """Name of the module whose output columns are mixed with, "" for the model itself. Where the model computes its own
    loss, this must be the module that returns its logits. What is mixed is the output of the column's module of the
    same name, or its own output if it has none."""
    model: str = ""
    """Name of the module that columns are copies of; they are called when it is, with the same arguments. "" is the
    whole model. Where the module that is trained is not called itself, as with Lightning, name its network."""
    loss: ColumnLoss = "auto"
    """What columns learn before they join: the task itself (`own`), what the model leaves (`rest`), or `rest` until the
    model overfits and `own` from then on (`auto`), within half a point of the better of both on three models."""
    lr_scale: float = 1.0
    """Learning rate of columns, in multiples of that of the model's own parameters."""

    def __post_init__(self) -> None:
        require(callable(self.factory), f"the factory of a column is {self.factory!r}: give a function of the scale")
        require(1 <= self.count <= 8, f"count is {self.count}: there can be 1 to 8 columns")
        require(self.loss in get_args(ColumnLoss), f"loss is {self.loss!r}: choose auto, own or rest")
        require(self.lr_scale > 0, f"lr_scale is {self.lr_scale}: it must be positive")

    def build(self, scale: float, seed: int, model: nn.Module) -> nn.Module:
        """Call the factory, with random numbers of its own, for a column of `model`, whose device and dtype it takes.
        Raises `UserError` if it fails."""
        with own_random_numbers(seed):
            network = self._call(scale)
        given, made = next(model.parameters()), next(network.parameters())
        casts = made.is_floating_point() and given.dtype != made.dtype
        network = network.to(given.device, given.dtype if casts else None)
        keep_output(network, self.output)
        if _wrap_fits(model, network):
            wrapped = vars(model)["forward"].__func__
            network.__dict__ |= {WRAPPED: network.forward, "forward": MethodType(wrapped, network)}
        return network

    def count_params(self, scale: float, model: nn.Module) -> int:
        """Return the number of parameters of a column, without allocating them where that is possible.

        Raises `UserError` if the factory fails, returns the model's own parameters, or visibly another number of
        outputs.
        """
        with own_random_numbers(0):
            try:
                with torch.device("meta"):
                    network = self._call(scale)
            except UserError:  # it does more than declare parameters
                network = self._call(scale)
        lazy = any(isinstance(p, nn.UninitializedParameter) for p in network.parameters())
        require(not lazy, f"factory({scale:g}) of a column returned lazy layers, of unknown size: give their sizes")
        known = {id(m) for m in model.modules()} | {id(p) for p in model.parameters()}
        shared = next((m for m in (*network.parameters(), *network.modules()) if id(m) in known), None)
        require(
            shared is None,
            f"factory({scale:g}) of a column returned the model's own {type(shared).__name__}: "
            "return a new network at each call",
        )
        outputs = self._outputs(model.get_submodule(self.model)), self._outputs(network)
        require(
            None in outputs or outputs[0] == outputs[1],
            f"factory({scale:g}) of a column returned a network of {outputs[1]} outputs, the model has {outputs[0]}: "
            "the factory must not scale the model's outputs",
        )
        called = model.get_submodule(self.model)
        require(
            WRAPPED not in vars(called) or _wrap_fits(called, network),
            f"factory({scale:g}) of a column returned a {type(network).__name__}: with accelerate's mixed precision "
            f"it must return a {type(called).__name__}, as the model is",
        )
        trains = any(p.requires_grad for p in network.parameters())
        require(trains, f"factory({scale:g}) of a column returned a network without trainable parameters")
        return sum(p.numel() for p in network.parameters())

    def _outputs(self, network: nn.Module) -> int | None:
        """Return the number of outputs; None where the structure does not tell."""
        try:
            last = attachment_point(network.get_submodule(self.output))
        except AttributeError:
            return None
        return last.out_features if isinstance(last, nn.Linear) else None

    def _call(self, scale: float) -> nn.Module:
        try:
            network = self.factory(scale)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"factory({scale:g}) of a column failed: {reason}") from error
        network = getattr(network, "_orig_mod", network)  # of a compiled network
        require(
            isinstance(network, nn.Module),
            f"factory({scale:g}) of a column returned {type(network).__name__}: return a torch.nn.Module",
        )
        return network


def _wrap_fits(model: Any, network: Any) -> bool:
    """Return whether accelerate has wrapped the model's forward so that the wrapper fits a column as well."""
    method = WRAPPED in vars(model) and hasattr(vars(model)["forward"], "__func__")
    return method and type(network).forward is type(model).forward


def column_family() -> Family:
    """Return a family that offers the columns of all families, and nothing in the stream."""
    tables = zip(*(family.columns for family in FAMILIES.values()), strict=True)
    columns = [next((column for column in row if column is not None), None) for row in tables]
    return Family("column", 0, [NOOP] * len(columns), columns, unit_gate_logits)


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """Seed the random number generators of Python, NumPy and PyTorch within the context, and restore them after it."""
    on_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with random_numbers_kept(range(torch.cuda.device_count()) if on_cuda else ()):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (a user's factory may draw from it)
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            torch.cuda.manual_seed_all(seed)
        yield
