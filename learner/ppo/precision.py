"""Mixed precision: in which type encoder and core run."""

from __future__ import annotations

import torch

from learner.config import LearnerConfig


def autocast(config: LearnerConfig, device: torch.device) -> torch.autocast:
    """A fresh context for one forward. Casts of weights made without gradient must not serve a later forward."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16", cache_enabled=False)
