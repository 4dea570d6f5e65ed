"""`compile_kernels`: compiles the kernels of this folder once per machine."""

from __future__ import annotations

import torch

from actors.kernels.cnn.functions import (
    Blend,
    Classify,
    Convolve,
    CrossEntropy,
    NormalizeBatch,
    TwoLayers,
    WindowMean,
    calibration,
    gathered,
    rescaled,
)
from actors.kernels.compile import compile_once


def compile_kernels() -> None:
    """Compile all kernels and cache them on disk, unless they are: about ten seconds. See `compile_once`."""
    compile_once("cnn", __name__)


def fill_cache(precision: str) -> None:
    """Compile all kernels in this process, by a small pass forward and back."""
    h = torch.ones(16, 1, 1, 2, 2, requires_grad=True)
    gathered(torch.ones(1, 1, 1, 2, 2), torch.zeros(1, 1, 16, dtype=torch.long))
    one = torch.ones(1, 1, requires_grad=True)
    h = TwoLayers.apply(h, one.view(1, 1, 1, 1, 1), one, one.view(1, 1, 1, 1, 1), one, 1)  # type: ignore[no-untyped-call]
    h = Blend.apply(h, h, torch.zeros(1, dtype=torch.long), one[0], one, one[0])  # type: ignore[no-untyped-call]
    y = Convolve.apply(h, one.view(1, 1, 1, 1, 1), one, 1)  # type: ignore[no-untyped-call]
    mean, var = torch.zeros(1), torch.ones(1)
    y = NormalizeBatch.apply(y[:, 0], one[0], one[0], mean, var, (1, 1), True, 0.1, 1e-5)  # type: ignore[no-untyped-call]
    y = WindowMean.apply(y, (2, 2))  # type: ignore[no-untyped-call]
    logits = Classify.apply(y[:, None], one.view(1, 1, 1), one)  # type: ignore[no-untyped-call]
    labels, counts = torch.zeros(1, 16, dtype=torch.long), torch.ones(1, dtype=torch.long)
    CrossEntropy.apply(logits, labels, counts).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        rescaled(y, *calibration(y, one[0], one[0], 1, 1e-5), (1, 1), True)
