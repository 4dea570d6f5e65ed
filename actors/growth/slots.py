"""Slots of a user's model: where they are, what fits there, and the hook by which a seed joins the model's function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from actors.env.blueprints.family import FAMILIES, IMAGE, SEQUENCE, VECTOR
from actors.env.slots.growth_state import SlotShape
from actors.errors import UserError
from actors.growth.seed_module import SeedModule

CHILD = "tamiyo"
"""Name under which a plot is a child of the module that carries it; its seed's parameters are `...tamiyo.seed.*`."""


@dataclass(frozen=True)
class SlotSpec:
    """A slot after the output of a module. It belongs after a residual add or a norm rather than after a ReLU, where
    half of a blend would get no gradient."""

    width: int | None = None
    """Units or channels there; None reads it off the module's last layer."""
    family: Literal["auto", "vector", "sequence", "image"] = "auto"
    """`[..., width]`, `[B, width, L]` or `[B, width, H, W]`; auto reads it off the module's last layer."""
    lr_scale: float = 1.0
    """Learning rate of what grows here, in multiples of that of the module's own parameters."""


class SlotModule(nn.Module):
    """What grows at one slot. Its hook leaves the module's output alone, to the bit, while `on` is false."""

    def __init__(self, name: str, place: SlotShape, device: torch.device) -> None:
        super().__init__()
        self.name, self.family, self.width = name, place.family.name, place.width
        self.on = False
        self.strength = 0.0
        self.alpha: Tensor  # as a tensor, so that a ramp makes no compiled model compile again
        self.register_buffer("alpha", torch.zeros((), device=device), persistent=False)
        self.seed: SeedModule | None
        self.add_module("seed", None)

    def show(self, alpha: float | None) -> None:
        """Have the seed take part at this strength, or not at all."""
        self.on = alpha is not None and self.seed is not None
        if alpha is not None and alpha != self.strength:
            self.strength = alpha
            with torch.no_grad():
                self.alpha.fill_(alpha)

    def join(self, module: nn.Module, args: Any, output: Any) -> Any:
        """A forward hook. Of a module with several outputs the first is meant. Raises `UserError`."""
        if not self.on or self.seed is None:
            return None
        h = output[0] if isinstance(output, tuple) else output
        self.check(h)
        grown = self.seed(h, self.alpha)
        return (grown, *output[1:]) if isinstance(output, tuple) else grown

    def check(self, h: object) -> None:
        dims = FAMILIES[self.family].dims
        fits = isinstance(h, Tensor) and (
            h.shape[-1] == self.width if dims == 0 else h.dim() == dims + 2 and h.shape[1] == self.width
        )
        if not fits:
            found = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise UserError(
                f"slot {self.name!r} takes a {self.family} of width {self.width}, and its module gave {found}: "
                "say what it gives by SlotSpec(width=..., family=...)"
            )


def place_of(name: str, module: nn.Module, spec: SlotSpec) -> SlotShape:
    """What fits after that module. Raises `UserError`."""
    family, width = None, None
    for layer in reversed(list(module.modules())):
        match layer:
            case nn.Linear():
                family, width = VECTOR, layer.out_features
            case nn.LayerNorm() if len(layer.normalized_shape) == 1:
                family, width = VECTOR, layer.normalized_shape[0]
            case nn.Conv1d():
                family, width = SEQUENCE, layer.out_channels
            case nn.Conv2d():
                family, width = IMAGE, layer.out_channels
            case nn.BatchNorm2d():
                family, width = IMAGE, layer.num_features
        if family is not None:
            break
    family = family if spec.family == "auto" else FAMILIES[spec.family]
    width = width if spec.width is None else spec.width
    if family is None or width is None:
        raise UserError(
            f"what slot {name!r} is like cannot be read off {type(module).__name__}: "
            'give SlotSpec(width=..., family="vector" | "sequence" | "image")'
        )
    return SlotShape(family, width)


def find_module(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        known = ", ".join(n for n, _ in model.named_modules() if n and CHILD not in n.split("."))
        raise UserError(f"the model has no module {name!r} to put a slot after; it has {known}") from error


def plot_after(model: nn.Module, name: str, place: SlotShape) -> SlotModule:
    """The plot of that slot; it is made, and its hook set, where there is none."""
    module = find_module(model, name)
    carrier = _carrier(module)
    present = getattr(carrier, CHILD, None)
    if isinstance(present, SlotModule):
        if present.name != name:
            raise UserError(f"slots {present.name!r} and {name!r} are at the same place: leave one of them out")
        return present
    parameter = next(module.parameters(), next(model.parameters(), None))
    plot = SlotModule(name, place, torch.device("cpu") if parameter is None else parameter.device)
    carrier.add_module(CHILD, plot)
    module.register_forward_hook(plot.join)
    return plot


def _carrier(module: nn.Module) -> nn.Module:
    """A module that does not call all of its children, as a Sequential would."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return module


@contextmanager
def showing(plots: Mapping[int, SlotModule], on: Mapping[int, float]) -> Iterator[None]:
    """Within it exactly the seeds of `on` take part, at these alphas."""
    before = {s: plot.strength if plot.on else None for s, plot in plots.items()}
    for s, plot in plots.items():
        plot.show(on.get(s))
    try:
        yield
    finally:
        for s, plot in plots.items():
            plot.show(before[s])
