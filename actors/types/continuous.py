"""The grid on which continuous actions are recorded, and their values in the environment.

A continuous head samples a number u from a Gaussian and rounds it to a cell of width 2^-16 in [-2^15, 2^15). Actions
stay whole numbers everywhere, every process reads exactly the number that was sampled, and a log-prob is that of the
cell, so that it is never positive. u is neither clipped nor squashed; its value in the environment is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CELL_BITS = 16
CELL_WIDTH = 2.0**-CELL_BITS
LARGEST = 2.0**15  # of |u|
CELLS = 1 << 32


class Bounded(Protocol):
    """A head, see `actors.types.actions.Head`."""

    @property
    def bounds(self) -> tuple[float | None, float | None] | None: ...
    @property
    def squash(self) -> bool: ...


def to_cells(u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the nearest cells, of the same shape as `u`."""
    return np.asarray(np.clip(np.round((u + LARGEST) / CELL_WIDTH), 0, CELLS - 1)).astype(np.int64)


def from_cells(cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return u, of the same shape as `cells`."""
    return np.asarray(cells * CELL_WIDTH - LARGEST)


def env_values(heads: Sequence[Bounded], cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the values `[..., C]` in the environment of `cells [..., C]`, one column per continuous head.

    With two finite bounds, u or tanh(u) is scaled so that -1 and 1 are the bounds. Without, u is the value itself.
    Values are clipped to the bounds.
    """
    u, values = from_cells(cells), np.empty(cells.shape)
    for k, head in enumerate(heads):
        low, high = head.bounds or (None, None)
        unit = np.tanh(u[..., k]) if head.squash else u[..., k]
        if low is not None and high is not None:
            unit = low + (high - low) * (unit + 1.0) / 2.0
        values[..., k] = np.clip(unit, -np.inf if low is None else low, np.inf if high is None else high)
    return values
