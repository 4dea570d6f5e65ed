"""The grid on which continuous actions are recorded.

A continuous head samples a number u from a Gaussian and rounds it to a cell of width 2^-16 in [-2^15, 2^15). Actions
stay whole numbers everywhere, every process reads exactly the number that was sampled, and a log-prob is that of the
cell, so that it is never positive. u is neither clipped nor squashed; its value in the environment is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CELL_BITS = 16
CELL_WIDTH = 2.0**-CELL_BITS
LARGEST = 2.0**15  # of |u|
CELLS = 1 << 32


def to_cells(u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the nearest cells, of the same shape as `u`."""
    return np.asarray(np.clip(np.round((u + LARGEST) / CELL_WIDTH), 0, CELLS - 1)).astype(np.int64)


def from_cells(cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return u, of the same shape as `cells`."""
    return np.asarray(cells * CELL_WIDTH - LARGEST)
