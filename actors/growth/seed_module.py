"""`SeedModule`: a blueprint with its blend as a module of a user's model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from actors.env.blueprints.blends import apply_blend, gate_shapes
from actors.env.blueprints.family import FAMILIES
from actors.env.hosts.host import draw_params
from actors.env.slots.growth_state import SlotShape


class SeedModule(nn.Module):
    """Parameters are drawn by `rng` and by nothing else, so that a user's own random numbers stay what they were."""

    def __init__(
        self,
        place: SlotShape,
        blueprint: int,
        blend: int,
        rng: np.random.Generator,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.family, self.blueprint, self.blend = place.family.name, blueprint, blend
        shapes = place.family.blueprints[blueprint].shapes(place.width) | gate_shapes(blend, place.width)
        self.names = {name: name.replace(".", "_") for name in shapes}  # a parameter's name has no dot
        for name, tensor in draw_params(shapes, rng, dtype).items():
            self.register_parameter(self.names[name], nn.Parameter(tensor.detach().to(device)))

    def forward(self, h: Tensor, alpha: Tensor) -> Tensor:
        """The host's `h` with this seed blended in, in the shape and type of `h`."""
        family = FAMILIES[self.family]
        params = {name: getattr(self, own) for name, own in self.names.items()}
        s = family.blueprints[self.blueprint].forward(params, h, None)
        return apply_blend(self.blend, h, s, alpha, params, family.gate_logits).to(h.dtype)
