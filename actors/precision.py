"""`tf32`: whether a GPU may round the factors of matrix products, convolutions and LSTMs to ten bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32, forward and back. PyTorch forbids it in matrix products by default and allows it in
    cuDNN's convolutions and LSTMs, whose results then differ from a CPU's in the third digit. Also a decorator."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before
