"""`GrownModel`: a model and the columns that are mixed with it; `ExportedSeed`: a seed within one.

This file needs PyTorch alone, so that it can be copied to where a grown model is used without Tamiyo.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

CACHES = ("past_key_values", "cache_params")
"""Arguments by which transformers pass a model's own state back to it, beside those with a `get_seq_length`."""
ARITHMETIC = ("add", "floordiv", "getitem", "mul", "neg", "sub")
"""Functions of Python that a `ExportedSeed` may call, on sizes."""


class Kept:
    """A forward hook that keeps the last output of its module, which is within a column."""

    output: Any = None

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.output = output


def keep_output(network: nn.Module, name: str) -> Kept | None:
    """Let a column keep the output of its module of that name; None where it has none: then its own output counts."""
    inner = dict(network.named_modules()).get(name) if name else None
    if inner is None:
        return None
    kept = next((hook for hook in inner._forward_hooks.values() if isinstance(hook, Kept)), None)
    if kept is None:
        kept = Kept()
        inner.register_forward_hook(kept)
    return kept


def column_output(network: nn.Module, kept: Kept | None, args: Any, kwargs: Any) -> Any:
    """Call a column with what the model is called with, and return what is mixed."""
    output = network(*args, **kwargs)
    if kept is not None:
        output, kept.output = kept.output, None
    return output


def tensors_of(output: Any) -> dict[Any, Tensor]:
    """Return the tensors of a module's output that can be mixed, by where they are: the output itself (""), `logits` of
    a mapping or an object, or else all tensors in a tuple, a list or a mapping; no single number, such as a loss."""
    if isinstance(output, Tensor):
        return {"": output} if output.dim() else {}
    if isinstance(output, Mapping):
        if isinstance(output.get("logits"), Tensor):
            return {"logits": output["logits"]}
        return {name: value for name, value in output.items() if _mixes(value)}
    if isinstance(getattr(output, "logits", None), Tensor):
        return {"logits": output.logits}
    if isinstance(output, tuple | list):
        return {i: value for i, value in enumerate(output) if _mixes(value)}
    return {}


def _mixes(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and (value.is_floating_point() or value.is_complex())


def with_tensors(output: Any, tensors: Mapping[Any, Tensor]) -> Any:
    """Return the output with other tensors at places of `tensors_of`, in the same type; the given one does not
    change."""
    if isinstance(output, Tensor):
        return tensors[""]
    if type(output) is dict:
        return {**output, **tensors}
    if isinstance(output, tuple | list) and "logits" not in tensors:
        values = [tensors.get(i, value) for i, value in enumerate(output)]
        return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)
    if hasattr(output, "_replace"):
        return output._replace(**tensors)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(output, **tensors)
    changed = copy.copy(output)
    for name, tensor in tensors.items():
        if isinstance(changed, Mapping):
            changed[name] = tensor  # type: ignore[index]
        else:
            setattr(changed, name, tensor)
    return changed


def mixed(output: Any, column: Any, alpha: Tensor) -> Any:
    """Return a model's output with each tensor z of it replaced by `(1 - alpha) * z + alpha * c`, where c is the
    column's. At 0 and 1 these are z and c to the bit. Raises `ValueError` if no tensor of both has the same shape."""
    returned, others = tensors_of(output), tensors_of(column)
    fitting = {at: z for at, z in returned.items() if at in others and others[at].shape == z.shape}
    if not fitting:
        raise ValueError(_misfit(output, column))
    return with_tensors(output, {at: _mix(z, others[at], alpha) for at, z in fitting.items()})


def _mix(z: Tensor, c: Tensor, alpha: Tensor) -> Tensor:
    between = (1 - alpha) * z + alpha * c
    return torch.where(alpha == 0, z, torch.where(alpha == 1, c, between)).to(z.dtype)


def _misfit(output: Any, column: Any) -> str:
    returned, others = tensors_of(output), tensors_of(column)
    if not returned:
        return (
            f"the model returns {'one number' if isinstance(output, Tensor) else type(output).__name__}, with which no "
            "column can be mixed: return a tensor of predictions, a tuple, a dict or an object with logits, or name a "
            "module that does by Column(output=...)"
        )
    if returned.keys().isdisjoint(others):
        return (
            f"the column returns {type(column).__name__} where the model returns {type(output).__name__}: "
            "the factory must return the model's own architecture"
        )
    at = next(at for at in returned if at in others)
    return (
        f"the column returns {tuple(others[at].shape)} where the model returns {tuple(returned[at].shape)}: "
        "the factory must not scale the model's outputs"
    )


def check_arguments(kwargs: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a model is called with a state that belongs to one network, while it is several."""
    for name, value in kwargs.items():
        if value is not None and (name in CACHES or hasattr(value, "get_seq_length")):
            raise ValueError(
                f"{name} holds the state of one network, but a column is mixed with this model: "
                "call it without, as generate(..., use_cache=False) does"
            )


class GrownModel(nn.Module):
    """A model `host` and the networks `column_1`, `column_2`, ..., which are mixed with it one after the other, each at
    its own `alpha_1`, `alpha_2`, ... They are called with what the model is called with, in this order."""

    def __init__(
        self, host: nn.Module, columns: Sequence[nn.Module], alphas: Sequence[Tensor], output: str = ""
    ) -> None:
        """`output` names the module of `host` whose output is mixed with that of the same module of each column; "" is
        the host itself."""
        super().__init__()
        self.host, self.output, self.count = host, output, len(columns)
        for i, (column, alpha) in enumerate(zip(columns, alphas, strict=True), start=1):
            self.add_module(f"column_{i}", column)
            self.register_buffer(f"alpha_{i}", alpha)
        self._kept = [keep_output(column, output) for column in columns]
        self._called: tuple[Any, Any] | None = None
        if output:
            host.get_submodule(output).register_forward_hook(self._mix_within)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        check_arguments(kwargs)
        if not self.output:
            return self._mix(self.host(*args, **kwargs), args, kwargs)
        self._called = args, kwargs
        try:
            return self.host(*args, **kwargs)
        finally:
            self._called = None

    def _mix_within(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return None if self._called is None else self._mix(output, *self._called)

    def _mix(self, output: Any, args: Any, kwargs: Any) -> Any:
        for i, kept in enumerate(self._kept, start=1):
            column = column_output(self._modules[f"column_{i}"], kept, args, kwargs)  # type: ignore[arg-type]
            output = mixed(output, column, self._buffers[f"alpha_{i}"])  # type: ignore[arg-type]
        return output

    def __getattr__(self, name: str) -> Any:
        """Return what the host knows about itself, such as `config`. What it does, it would do without its columns."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "host" not in self.__dict__.get("_modules", {}):
                raise
            value = getattr(self.host, name)
            if callable(value):
                raise AttributeError(
                    f"{name} is the host's own and would leave its columns out: call the grown model itself, or "
                    "fossilize a column at alpha 1.0, which makes it the model"
                ) from None
            return value


class ExportedSeed(nn.Module):
    """A seed that is blended into the output h of a module: a list of PyTorch's operations, as plain data.

    A step is (name of its result, function, arguments). An argument `{"of": name}` is a result, a parameter, `alpha` or
    `h`; `{"torch": name}` is a constant of PyTorch. With `rows`, h is `[..., width]`, and the operations are those for
    `[rows, width]`.
    """

    def __init__(self, steps: Sequence[Any], tensors: Mapping[str, Tensor], alpha: Tensor, rows: bool) -> None:
        super().__init__()
        self.rows = rows
        self.steps = [(name, function, args, kwargs) for name, function, args, kwargs in steps]
        self.names = list(tensors)
        self.register_buffer("alpha", alpha)
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor))

    def forward(self, h: Any) -> Any:
        if isinstance(h, tuple):  # of which the first is blended
            return (self.forward(h[0]), *h[1:])
        if self.rows and h.dim() != 2:
            return self.forward(h.reshape(-1, h.shape[-1])).view(h.shape)
        values: dict[str, Any] = {"h": h, "alpha": self.alpha, **{name: getattr(self, name) for name in self.names}}
        for name, function, args, kwargs in self.steps:
            values[name] = _function(function)(*_resolved(args, values), **_resolved(kwargs, values))
        return values[self.steps[-1][0]]


class Seeded(nn.Module):
    """A module of the model, called as before, and the seed that grew at its output."""

    def __init__(self, host: nn.Module, seed: ExportedSeed) -> None:
        super().__init__()
        self.host, self.seed = host, seed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.seed(self.host(*args, **kwargs))


def _function(name: str) -> Any:
    """Return an operation of PyTorch, or of arithmetic."""
    group, _, rest = name.partition(".")
    if group == "aten":
        operation, _, overload = rest.partition(".")
        return getattr(getattr(torch.ops.aten, operation), overload)
    if group != "operator" or rest not in ARITHMETIC:
        raise ValueError(f"a seed calls {name}, which is no operation of PyTorch's: the file is damaged")
    return getattr(operator, rest)


def _resolved(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_resolved(element, values) for element in value]
    if not isinstance(value, dict):
        return value
    if "of" in value:
        return values[value["of"]]
    if "torch" in value:
        return getattr(torch, value["torch"])
    return {key: _resolved(element, values) for key, element in value.items()}


def replaced(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """Return the model with another submodule of that name; "" is the model itself."""
    if not name:
        return new
    model.set_submodule(name, new)
    return model


def build_grown(grown: Mapping[str, Any], factory: Callable[[float], nn.Module]) -> nn.Module:
    """Build a grown model from its description, the contents of `grown.json`, and the factory of its columns. Load its
    tensors afterwards, by `safetensors.torch.load_model`."""
    model = factory(grown["scale"])
    for name, seed in grown["seeds"].items():
        tensors = {key: torch.zeros(shape) for key, shape in seed["shapes"].items()}
        module = ExportedSeed(seed["steps"], tensors, torch.zeros(()), seed["rows"])
        pair = Seeded(model.get_submodule(name), module)
        model = replaced(model, name, pair)
    columns = [factory(scale) for scale in grown["columns"]]
    alphas = [torch.zeros(()) for _ in columns]
    return GrownModel(model, columns, alphas, grown["output"]) if columns else model
