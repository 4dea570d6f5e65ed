"""`adopt`: a module becomes another one of its kind, and stays the object that its users hold."""

from __future__ import annotations

from torch import nn

from actors.errors import UserError

WRAPPED = "_original_forward"
"""Where accelerate keeps a module's forward if it has wrapped it, to enter mixed precision."""
OWN = ("training", "forward", WRAPPED, "_compiled_call_impl", "_is_full_backward_hook")
"""What a module keeps of itself, beside its hooks."""


def adopt(module: nn.Module, other: nn.Module) -> None:
    """Give a module the class, submodules, parameters, buffers and attributes of another one. Its hooks, its mode, and
    attributes that the other one lacks are kept. Raises `UserError` if their classes are too different."""
    if type(module) is not type(other):
        try:
            module.__class__ = type(other)
        except TypeError as error:
            raise UserError(
                f"a {type(other).__name__} cannot take the place of a {type(module).__name__}: {error}"
            ) from error
    for name, value in other.__dict__.items():
        if name not in OWN and "_hooks" not in name:
            module.__dict__[name] = dict(value) if name in ("_parameters", "_buffers", "_modules") else value
