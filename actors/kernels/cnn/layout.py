"""The memory layout of the kernels' tensors: rows of data innermost. This module does not import Numba."""

from __future__ import annotations

from torch import Tensor, float32

NARROW = 16
"""Rows of data come in multiples of this; what wide tiles leave is computed by narrow ones."""


def suits(h: Tensor) -> bool:
    """Return whether the kernels can compute with a tensor whose first dimension is rows of data."""
    return h.is_cpu and h.dtype is float32 and h.shape[0] % NARROW == 0 and h.shape[0] > 0


def rows_innermost(h: Tensor) -> bool:
    """Return whether rows of data are innermost in the memory of `h`, and the kernels can compute with it."""
    return h.stride(0) == 1 and suits(h) and h.movedim(0, -1).is_contiguous()


def with_rows_innermost(h: Tensor) -> Tensor:
    """Return `h` with rows of data innermost in memory."""
    if rows_innermost(h) or not h.is_contiguous():
        return h.movedim(0, -1).contiguous().movedim(-1, 0)
    flat = h.flatten(1).t().contiguous()  # PyTorch transposes matrices faster than it reorders dimensions
    return flat.view(*h.shape[1:], h.shape[0]).movedim(-1, 0)
