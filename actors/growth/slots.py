"""Slots in a user's model: their location, their shape, the seeds in them, and the hook that blends one in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from actors.blueprints.blends import apply_blend, gate_shapes
from actors.blueprints.family import FAMILIES, IMAGE, SEQUENCE, VECTOR, Family
from actors.errors import UserError
from actors.growth.slot_module import CHILD, SlotModule, attachment_point
from actors.growth.training.scores import ScoreRecorder
from actors.slots.slot_shape import SlotShape, stream_slot


@dataclass(frozen=True)
class SlotSpec:
    """A slot after the output of a module.

    Put it after a residual add or a norm rather than after a ReLU, where half of a blend would get no gradient.
    """

    width: int | None = None
    """Units or channels of the output; None infers them from the module's last layer."""
    family: Literal["auto", "vector", "sequence", "image"] = "auto"
    """`[..., width]`, `[B, width, L]` or `[B, width, H, W]`; auto infers it from the module's last layer."""
    lr_scale: float = 1.0
    """Learning rate of seeds in this slot, in multiples of that of the module's own parameters."""


class SeedModule(nn.Module):
    """A seed. Its parameters are drawn from `rng` alone, so that the user's own random numbers do not change."""

    def __init__(
        self,
        slot_shape: SlotShape,
        blueprint: int,
        blend: int,
        rng: np.random.Generator,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.family, self.blueprint, self.blend = slot_shape.family.name, blueprint, blend
        shapes = slot_shape.family.blueprints[blueprint].shapes(slot_shape.width) | gate_shapes(blend, slot_shape.width)
        self.names = {name: name.replace(".", "_") for name in shapes}  # parameter names must not contain a dot
        for name, param in shapes.items():
            drawn = torch.tensor(param.draw(rng), dtype=dtype, device=device)
            self.register_parameter(self.names[name], nn.Parameter(drawn))

    def forward(self, h: Tensor, alpha: Tensor) -> Tensor:
        """Return `h` with this seed blended in at strength `alpha`, in the shape and dtype of `h`."""
        family = FAMILIES[self.family]
        params = {name: getattr(self, attribute) for name, attribute in self.names.items()}
        s = family.blueprints[self.blueprint].forward(params, h, None)
        return apply_blend(self.blend, h, s, alpha, params, family.gate_logits).to(h.dtype)


class StreamSlot(SlotModule):
    """A slot after the output of a module, which is of one family and width."""

    def __init__(self, name: str, slot_shape: SlotShape, device: torch.device) -> None:
        super().__init__(name, device)
        self.family, self.width = slot_shape.family.name, slot_shape.width
        self.recorder: ScoreRecorder | None = None
        self.index = -1  # of the slot, for the recorder

    def blend_in(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Forward hook. A tuple's first output is the one that is changed. Raises `UserError`."""
        h = output[0] if isinstance(output, tuple) else output
        if not self.on or self.seed is None:
            if self.recorder is not None and isinstance(h, Tensor):
                self.recorder.see((self.index,), h)
            return None
        self.check(h)
        grown = self.seed(h, self.alpha)
        return (grown, *output[1:]) if isinstance(output, tuple) else grown

    def check(self, h: object) -> None:
        """Raise `UserError` if `h` is not of this slot's family and width."""
        dims = FAMILIES[self.family].dims
        fits = isinstance(h, Tensor) and (
            h.shape[-1] == self.width if dims == 0 else h.dim() == dims + 2 and h.shape[1] == self.width
        )
        if not fits:
            found = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise UserError(
                f"slot {self.name!r} expects a {self.family} of width {self.width}, but its module returned {found}: "
                "describe the output by SlotSpec(width=..., family=...)"
            )


def infer_slot_shape(name: str, module: nn.Module, spec: SlotSpec) -> SlotShape:
    """Infer family and width of a module's output. Raises `UserError`."""
    family: Family | None = None
    width: int | None = None
    for layer in reversed(list(module.modules())):
        match layer:
            case nn.Linear(out_features=width) | nn.LayerNorm(normalized_shape=(width,)):
                family = VECTOR
            case nn.Conv1d(out_channels=width):
                family = SEQUENCE
            case nn.Conv2d(out_channels=width) | nn.BatchNorm2d(num_features=width):
                family = IMAGE
            case _:
                continue
        break
    family = family if spec.family == "auto" else FAMILIES[spec.family]
    width = width if spec.width is None else spec.width
    if family is None or width is None:
        raise UserError(
            f"family and width of slot {name!r} cannot be inferred from {type(module).__name__}: "
            'give SlotSpec(width=..., family="vector" | "sequence" | "image")'
        )
    return stream_slot(family, width)


def find_module(model: nn.Module, name: str) -> nn.Module:
    """Return the submodule of that name. Raises `UserError`."""
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        known = ", ".join(n for n, _ in model.named_modules() if n and f".{CHILD}" not in f".{n}")
        raise UserError(f"the model has no module {name!r}; its modules are {known}") from error


def stream_slot_of(model: nn.Module, name: str, slot_shape: SlotShape) -> StreamSlot:
    """Return the `StreamSlot` after the module of that name. Creates it, and registers its hook, on the first call."""
    module = find_module(model, name)
    attachment = attachment_point(module)
    present = getattr(attachment, CHILD, None)
    if isinstance(present, StreamSlot):
        if present.name != name:
            raise UserError(f"slots {present.name!r} and {name!r} are at the same place: leave one of them out")
        return present
    parameter = next(module.parameters(), next(model.parameters(), None))
    slot_module = StreamSlot(name, slot_shape, torch.device("cpu") if parameter is None else parameter.device)
    attachment.add_module(CHILD, slot_module)
    module.register_forward_hook(slot_module.blend_in)
    return slot_module
