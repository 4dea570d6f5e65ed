"""LayerNorm for hidden tensors whose width is padded in a stack of environments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-5


class Units(NamedTuple):
    """Marks the real hidden units of a padded width W, for each of E environments."""

    mask: Tensor  # [E, 1, W], 1 for real units, 0 for padding
    share: Tensor  # [E, W, 1], 1 / (number of real units) for real units, 0 for padding

    @classmethod
    def of_widths(cls, widths: Tensor, padded: int, dtype: torch.dtype) -> Units:
        """Mark the first `widths` `[E]` of `padded` units."""
        mask = (torch.arange(padded, device=widths.device) < widths[:, None]).to(dtype)
        return cls(mask[:, None, :], (mask / widths[:, None])[:, :, None])

    def rows(self, index: Tensor | slice) -> Units:
        """Return the units of some environments."""
        return Units(self.mask[index], self.share[index])


def layer_norm(h: Tensor, gain: Tensor, bias: Tensor, units: Units | None = None) -> Tensor:
    """Normalize over the last dimension; with `units`, over real units only, returning `bias` for padded ones."""
    if units is None:
        centered = h - h.mean(-1, keepdim=True)
        return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + EPS) * gain + bias
    centered = (h - h @ units.share) * units.mask
    return centered * torch.rsqrt(centered.square() @ units.share + EPS) * gain + bias
