"""`SlotModule`: what slots of both kinds have in common, as a module inside a user's model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHILD = "tamiyo"
"""Name of a slot inside the module it is attached to, and the beginning of the name of the column slots; the
parameters of seeds are named `...tamiyo.seed.*` and `...tamiyo_columns.N.seed.*`."""


class SlotModule(nn.Module):
    """Holds the seed of one slot. While `on` is false, the slot leaves the model unchanged to the bit."""

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__()
        self.name = name
        self.on = False
        self.strength = 0.0
        self.alpha: Tensor  # a tensor, so that a change of alpha does not recompile a compiled model
        self.register_buffer("alpha", torch.zeros((), device=device), persistent=False)
        self.seed: nn.Module | None
        self.add_module("seed", None)

    def activate(self, alpha: float | None) -> None:
        """Switch the seed on at strength `alpha`, or off with None."""
        self.on = alpha is not None and self.seed is not None
        if alpha is not None and alpha != self.strength:
            self.strength = alpha
            with torch.no_grad():
                self.alpha.fill_(alpha)


def attachment_point(module: nn.Module) -> nn.Module:
    """Return a module that does not call all of its children, as `Sequential` does."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return module
