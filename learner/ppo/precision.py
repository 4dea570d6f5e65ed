"""Precision of the update: the types in which encoder, core and matrix products run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from learner.config import LearnerConfig


def autocast(config: LearnerConfig, device: torch.device) -> torch.autocast:
    """A fresh context for one forward. Casts of weights made without gradient must not serve a later forward."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16", cache_enabled=False)


@contextmanager
def tensor_cores(config: LearnerConfig) -> Iterator[None]:
    """TF32 in matrix products and in cuDNN, whose LSTM PyTorch lets use it by default, as `config.tf32` says."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = config.tf32
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before
