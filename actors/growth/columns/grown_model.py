"""A model with columns: their outputs are added to the model's.

Exported models carry the text of this file, so that they load without Tamiyo: it imports only PyTorch and the standard
library, and `exec` of its text with `source` set to that text must define all that is below.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

source: str  # the text of this file, where it is executed for an exported model


def tensor_key(output: Any) -> Any:
    """Return where the tensor of a module's output is: "" for a tensor, "logits" for an attribute of that name, an
    index of a tuple or list, or ("key", name) of a mapping. None if there is no such tensor."""
    if isinstance(output, Tensor):
        return ""
    if isinstance(output, Mapping):
        names = [name for name, value in output.items() if isinstance(value, Tensor)]
        if "logits" in names:
            return ("key", "logits")
        return ("key", names[0]) if len(names) == 1 else None
    if isinstance(getattr(output, "logits", None), Tensor):
        return "logits"
    if isinstance(output, tuple | list):
        for i, value in enumerate(output):
            if isinstance(value, Tensor):
                return i
    return None


def tensor_of(output: Any, key: Any) -> Tensor:
    """Return the tensor of an output at its `tensor_key`."""
    found: Tensor
    if key == "":
        found = output
    elif key == "logits":
        found = output.logits
    else:
        found = output[key[1]] if isinstance(key, tuple) else output[key]
    return found


def with_tensor(output: Any, key: Any, tensor: Tensor) -> Any:
    """Return the output with another tensor at its `tensor_key`, in the same type; the given one does not change."""
    if key == "":
        return tensor
    if isinstance(key, tuple):
        if type(output) is dict:
            return {**output, key[1]: tensor}
        changed = copy.copy(output)
        changed[key[1]] = tensor
        return changed
    if key == "logits":
        if hasattr(output, "_replace"):
            return output._replace(logits=tensor)
        if dataclasses.is_dataclass(output) and not isinstance(output, type):
            return dataclasses.replace(output, logits=tensor)
        changed = copy.copy(output)
        changed.logits = tensor
        return changed
    values = [*output[:key], tensor, *output[key + 1 :]]
    return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)


class GrownColumn(nn.Module):
    """A network whose output is added to a model's, times its gate where it has one."""

    def __init__(self, network: nn.Module, output: str = "", gate: Tensor | None = None) -> None:
        """`output` names the network's own module whose output is added, "" for the network itself."""
        super().__init__()
        self.network, self.output = network, output
        self.gate = None if gate is None else nn.Parameter(gate)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the tensor that is to be added to the model's, before alpha."""
        return self.tensor(self.raw_output(*args, **kwargs))

    def tensor(self, output: Any) -> Tensor:
        """Return what is to be added, from the network's output."""
        tensor = tensor_of(output, tensor_key(output))
        return tensor if self.gate is None else self.gate * tensor

    def raw_output(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network, and return the output of the module that is named."""
        if not self.output:
            return self.network(*args, **kwargs)
        seen: list[Any] = []
        inner = self.network.get_submodule(self.output)
        handle = inner.register_forward_hook(lambda module, inputs, output: seen.append(output))
        try:
            self.network(*args, **kwargs)
        finally:
            handle.remove()
        return seen[-1]


class _Portable(nn.Module):
    """A module that is pickled together with the text of its class. Only that text, executed, makes such modules."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild = f"exec(source, globals()) or {type(self).__name__}.__new__({type(self).__name__})"
        return eval, (rebuild, {"source": globals()["source"], "__name__": "grown_model"}), self.__dict__


class PortableColumn(GrownColumn, _Portable):
    """A `GrownColumn` of an exported model, with its strength."""

    alpha: Tensor

    def __init__(self, network: nn.Module, output: str, gate: Tensor | None, alpha: Tensor) -> None:
        super().__init__(network, output, gate)
        self.register_buffer("alpha", alpha)


class GrownOutput(_Portable):
    """A module to whose output `GrownModel` adds."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host
        self.additions: list[Tensor] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return added(self.host(*args, **kwargs), self.additions)


class GrownModel(_Portable):
    """A model and its columns. They are called with what it is called with."""

    def __init__(self, host: nn.Module, columns: list[PortableColumn], output: str) -> None:
        """`output` names the `GrownOutput` within `host` that columns add to; "" for the host's own output."""
        super().__init__()
        self.host, self.columns, self.output = host, nn.ModuleList(columns), output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        additions = [column.alpha * column(*args, **kwargs) for column in self.columns]
        if not self.output:
            return added(self.host(*args, **kwargs), additions)
        inner = self.host.get_submodule(self.output)
        inner.additions = additions  # type: ignore[assignment]
        try:
            return self.host(*args, **kwargs)
        finally:
            inner.additions = []  # type: ignore[assignment]


def added(output: Any, additions: list[Tensor]) -> Any:
    """Return an output with these tensors added to its own, in its dtype."""
    key = tensor_key(output)
    total = tensor_of(output, key)
    for addition in additions:
        total = (total + addition).to(total.dtype)
    return with_tensor(output, key, total)
