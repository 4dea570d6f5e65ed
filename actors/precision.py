"""`tf32`: whether a GPU may round the factors of matrix products, convolutions and LSTMs to ten bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32, forward and back. PyTorch forbids it in matrix products by default and allows it in
    cuDNN's convolutions and LSTMs, whose results then differ from a CPU's in the third digit. Also a decorator.

    PyTorch has two settings for it. `allow_tf32` cannot be read where a program has set `fp32_precision`; inside, both
    are set, so that every reader finds them in agreement.
    """
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    switches = (matmul, cudnn.conv, cudnn.rnn)
    before, flags = [switch.fp32_precision for switch in switches], dict[Any, bool]()
    for switch in (cudnn, matmul):
        with suppress(RuntimeError):
            flags[switch] = switch.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = allowed
    for switch in switches:
        switch.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        for switch, flag in flags.items():
            switch.allow_tf32 = flag
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def matmul_allows_tf32() -> bool:
    """Whether matrix products on a GPU may use TF32."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
