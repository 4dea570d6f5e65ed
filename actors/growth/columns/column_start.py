"""`ColumnStart`: how the columns of a model start without effect, found out at the model's first call."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from actors.config import require
from actors.errors import UserError
from actors.growth.columns.column import Column, own_random_numbers
from actors.growth.columns.grown_model import GrownColumn, tensor_key, tensor_of
from actors.growth.slot_module import NotCopied


class ColumnStart(NotCopied):
    """Makes columns that start without effect.

    The last linear or convolution layer of a column, in the order of registration, starts at 0. Where that does not
    make the column's output 0, or leaves it without a gradient, the output is multiplied by a gate that starts at 0.
    """

    def __init__(self, column: Column, model: nn.Module, scale: float) -> None:
        """`model` is what columns are copies of; `scale` is that of the column that is tried."""
        self.column, self._model, self._scale = column, model, scale
        self.gated: bool | None = None

    @property
    def known(self) -> bool:
        return self.gated is not None

    def build(self, scale: float, seed: int) -> GrownColumn:
        """Build a column that has no effect yet, on the model's device and in its dtype. Raises `UserError`."""
        network = self._network(scale, seed)
        gate = None
        if self.gated is False:
            layer = last_layer(network)
            assert layer is not None
            zero(layer)
        else:
            gate = next(self._model.parameters()).detach().new_zeros(())
        return self._column(network, gate)

    def examine(self, args: Any, kwargs: Any, output: Any, training: bool) -> None:
        """Try a column with what the model was called with, without side effects.

        Raises `UserError` if the column's output cannot be added to the model's.
        """
        network = self._network(self._scale, 0).train(training)
        layer = last_layer(network)
        if layer is not None:
            zero(layer)
        column = self._column(network, None)
        with own_random_numbers(0), torch.inference_mode(False), torch.enable_grad():
            args, kwargs = tree_map(_trainable, (args, kwargs))
            try:
                found = column.raw_output(*args, **kwargs)
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UserError(f"a column cannot be called with what the model is called with: {reason}") from error
            check_key(output)
            require(
                tensor_key(found) == tensor_key(output),
                f"the column returns {type(found).__name__} where the model returns {type(output).__name__}: "
                "the factory must return the model's own architecture",
            )
            addition = column.tensor(found)
            check_shape(output, addition)
            self.gated = layer is None or bool(addition.any()) or not _has_gradient(addition, layer)

    def _network(self, scale: float, seed: int) -> nn.Module:
        network = self.column.build(scale, seed)
        given, made = next(self._model.parameters()), next(network.parameters())
        casts = made.is_floating_point() and given.dtype != made.dtype
        return network.to(given.device, given.dtype if casts else None)

    def _column(self, network: nn.Module, gate: Tensor | None) -> GrownColumn:
        named = any(name == self.column.output for name, _ in network.named_modules())
        return GrownColumn(network, self.column.output if named else "", gate)


def check_key(output: Any) -> None:
    """Raise `UserError` if a model's output has no tensor to which a column can be added."""
    if tensor_key(output) is None:
        raise UserError(
            f"the model returns {type(output).__name__}, to which no column can be added: return a tensor, a tuple, "
            "a dict or an object with logits, or name a module that does by Column(output=...)"
        )


def check_shape(output: Any, addition: Tensor) -> None:
    """Raise `UserError` if a column's output cannot be added to a model's."""
    shape = tensor_of(output, tensor_key(output)).shape
    if shape != addition.shape:
        raise UserError(
            f"the column returns {tuple(addition.shape)} where the model returns {tuple(shape)}: "
            "the factory must not scale the model's outputs"
        )


def last_layer(network: nn.Module) -> nn.Linear | _ConvNd | None:
    """Return the last linear or convolution layer; None if there is none, or its weights are also another module's."""
    modules = list(network.modules())
    layer = next((m for m in reversed(modules) if isinstance(m, nn.Linear | _ConvNd)), None)
    if layer is None or not isinstance(layer._parameters.get("weight"), nn.Parameter):
        return None
    users = Counter(id(p) for m in modules for p in m._parameters.values() if p is not None)
    return layer if all(users[id(p)] == 1 and p.requires_grad for p in layer.parameters()) else None


def zero(layer: nn.Linear | _ConvNd) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()


def _has_gradient(output: Tensor, layer: nn.Module) -> bool:
    if not output.requires_grad:
        return False
    weight = next(layer.parameters())
    (gradient,) = torch.autograd.grad(output.float().sum(), [weight], allow_unused=True)
    return gradient is not None and bool(gradient.any())


def _trainable(value: Any) -> Any:
    """Return a tensor that autograd accepts, also for one that was made in inference mode."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value
