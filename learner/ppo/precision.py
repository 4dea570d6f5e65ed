"""The precision of the update: the data types of encoder, core and matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from learner.config import LearnerConfig


def autocast(config: LearnerConfig, device: torch.device) -> torch.autocast:
    """Return a new context for one forward pass, because weights cast without gradient must not be reused by a later
    pass."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16", cache_enabled=False)


@contextmanager
def tensor_cores(config: LearnerConfig) -> Iterator[None]:
    """Set TF32 in matrix products and in cuDNN's LSTM as `config.tf32` says; PyTorch enables the latter by default."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = config.tf32
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before
