"""The precision of the update: the data types of encoder and core."""

from __future__ import annotations

import torch

from learner.config import LearnerConfig


def autocast(config: LearnerConfig, device: torch.device) -> torch.autocast:
    """Return a new context for one forward pass, because weights cast without gradient must not be reused by a later
    pass."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16", cache_enabled=False)
