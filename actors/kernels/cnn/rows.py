"""Gathers minibatches with rows of data innermost."""

from __future__ import annotations

from actors.kernels.decorators import Array, kernel

BLOCK = 64
"""Numbers of a row that are copied together: those of four lines of the cache."""


@kernel
def gather_rows(data: Array, rows: Array, x: Array) -> None:
    """Copy rows `[S, E, M]` of data [E, N, P] to x [S, E, P, M]."""
    steps, envs, count = rows.shape
    size = data.shape[2]
    for s in range(steps):
        for e in range(envs):
            for first in range(0, size, BLOCK):
                last = min(size, first + BLOCK)
                for m in range(count):
                    row = rows[s, e, m]
                    for p in range(first, last):
                        x[s, e, p, m] = data[e, row, p]
