"""`SeedModule`: one seed, a blueprint and its blend, as a module inside a user's model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from actors.blueprints.blends import apply_blend, gate_shapes
from actors.blueprints.family import FAMILIES
from actors.slots.slot_shape import SlotShape


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
