"""`ColumnArrays`: the columns of one network, as arrays that the kernels read and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from actors.env.hosts.host import Host, draw_into
from actors.kernels.decorators import Array
from actors.kernels.hosts.columns import Columns, work_size


class ColumnArrays:
    """The columns in C slots of one network.

    The rows of `arrays` are long enough for the widest column that the network has had so far, so that one that never
    had a column holds nothing.
    """

    def __init__(self, count: int, rows: int, dtype: np.dtype[Any]) -> None:
        """`rows` is the largest number of data rows that are computed together."""
        self.rows = rows
        q, first, second, work = (np.zeros((count, 0), dtype) for _ in range(4))
        width, mode = np.zeros((2, count), np.int64)
        self.arrays = Columns(q, first, second, width, np.zeros(count), mode, np.arange(count), work)
        self.hosts: dict[int, Host] = {}  # by column

    def germinate(self, c: int, host: Host, rng: np.random.Generator) -> None:
        """Draw the parameters of a new column and clear its moments."""
        work = work_size(host.slots, host.width, host.num_classes, self.rows)
        lengths = {"work": work} | dict.fromkeys(("q", "first_moment", "second_moment"), host.num_params())
        wider = {name: _widened(getattr(self.arrays, name), length) for name, length in lengths.items()}
        self.arrays = a = self.arrays._replace(**wider)
        self.hosts[c], a.width[c] = host, host.width
        draw_into(host.shapes(), a.q[c], rng)
        a.first_moment[c], a.second_moment[c] = 0, 0

    def prune(self, c: int) -> None:
        """Remove a column."""
        self.hosts.pop(c, None)

    def snapshot(self) -> dict[int, Array]:
        """Copy the parameters of each column."""
        return {c: self.arrays.q[c, : host.num_params()].copy() for c, host in self.hosts.items()}

    def restore(self, snapshot: Mapping[int, Array]) -> None:
        """Restore a snapshot and clear the moments; columns that it lacks keep their parameters."""
        for c in self.hosts.keys() & snapshot.keys():
            self.arrays.q[c, : snapshot[c].size] = snapshot[c]
        self.arrays.first_moment[:], self.arrays.second_moment[:] = 0, 0


def _widened(array: Array, length: int) -> Array:
    """Return the rows of `array [C, N]`, extended by zeros if they are shorter than `length`."""
    missing = length - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing))) if missing > 0 else array
