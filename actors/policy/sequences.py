"""Padded sequences, and where their steps lie in length buckets: one fused call per bucket, no loop over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.policy.state import PolicyState


class SequenceBatch(NamedTuple):
    """R rows of at most L steps, right-padded; what padding holds is never read."""

    obs: Tensor  # [R, L, D]
    blueprint_indices: Tensor  # [R, L, S]
    actions: Tensor  # [R, L, H]
    masks: Tensor  # [R, L, A] in force
    valid: Tensor  # [R, L] bool, True on a prefix of each row
    state: PolicyState  # before each row's first step, [n, R, width]


class Placement(NamedTuple):
    """Where the N valid steps of a batch, row by row, lie among its P >= N places in buckets, time-major."""

    flat: Tensor  # [N] each valid step's index in the flattened [R * L]
    rows: Tensor  # the buckets' rows, one bucket after the other
    step: Tensor  # [P] the valid step at each place; N where there is only padding
    place: Tensor  # [N] each valid step's place
    sizes: Tensor  # [buckets, 2] (steps, rows) of each bucket, on the CPU


def length_buckets(lengths: Sequence[int], max_waste: float) -> list[tuple[list[int], int]]:
    """Rows sorted by length and cut greedily so that padded / valid stays below `max_waste` in each bucket."""
    order = sorted((n, row) for row, n in enumerate(lengths) if n > 0)
    buckets: list[tuple[list[int], int]] = []
    rows: list[int] = []
    total = 0
    for n, row in order:
        if rows and n * (len(rows) + 1) > max_waste * (total + n):
            buckets.append((rows, lengths[rows[-1]]))
            rows, total = [], 0
        rows.append(row)
        total += n
    if rows:
        buckets.append((rows, lengths[rows[-1]]))
    return buckets


def place_steps(
    lengths: Sequence[int], width: int, max_waste: float = 1.3, device: torch.device | str = "cpu"
) -> Placement:
    """The placement of rows of these lengths in `[len(lengths), width]`; made on the host, so it waits for nothing."""
    n = np.array(lengths, dtype=np.int64)
    first, total = n.cumsum() - n, int(n.sum())
    flat = np.repeat(np.arange(len(n)) * width - first, n) + np.arange(total)
    index, rows, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    for members, steps in length_buckets(lengths, max_waste):
        chosen, t = np.array(members, dtype=np.int64), np.arange(steps)[:, None]
        index.append(np.where(t < n[chosen], first[chosen] + t, total).ravel())
        rows.append(chosen)
        sizes.append((steps, len(members)))
    whole = np.concatenate(index)
    place = np.zeros(total, np.int64)
    held = np.flatnonzero(whole < total)
    place[whole[held]] = held

    def there(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    on_host = torch.tensor(sizes, dtype=torch.long).reshape(-1, 2)
    return Placement(there(flat), there(np.concatenate(rows)), there(whole), there(place), on_host)


Run = Callable[[Tensor, PolicyState], tuple[Tensor, PolicyState]]
"""`[T, N, features]` and the state before it > `[T, N, outputs]` and the state after it."""


def run_buckets(
    run: Run, inputs: Tensor, placement: Placement, state: PolicyState, outputs: int
) -> tuple[Tensor, PolicyState]:
    """Outputs `[N, outputs]` at valid steps from inputs `[N, features]` at valid steps, and the rows' last states.

    A row of a bucket that pads (`max_waste` above 1) has run on over its padding: its last state is of no use.
    """
    padded = torch.cat([inputs, inputs.new_zeros(1, inputs.shape[1])])
    pieces, after = [], PolicyState(*(t.clone() for t in state))
    begin = first = 0
    for steps, count in placement.sizes.tolist():
        index = placement.step[begin : begin + steps * count]
        rows = placement.rows[first : first + count]
        begin, first = begin + steps * count, first + count
        x = padded.index_select(0, index).view(steps, count, -1)
        out, last = run(x, state.rows(rows))
        pieces.append(out.flatten(0, 1))
        after = PolicyState(*(t.index_copy(1, rows, new.to(t.dtype)) for t, new in zip(after, last, strict=True)))
    if not pieces:
        return inputs.new_zeros(0, outputs), after
    return torch.cat(pieces).index_select(0, placement.place), after
