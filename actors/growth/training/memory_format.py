"""`use_memory_format`: seeds lie in memory as their neighbours do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def use_memory_format(seed: nn.Module, neighbours: Iterable[Tensor]) -> None:
    """Convert a seed to `channels_last` where the convolutions beside it are: others would convert their input."""
    for dims, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        weights = [p for p in neighbours if p.dim() == dims and not p.is_contiguous()]
        if weights and all(p.is_contiguous(memory_format=memory_format) for p in weights):
            seed.to(memory_format=memory_format)  # type: ignore[call-overload]
