"""Batches of sequences of unequal length, which a fused recurrence runs over with one call per length bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.policy.state import PolicyState

Indices = NDArray[np.int64]


class Bucket(NamedTuple):
    """r rows with n valid steps in total, which one fused call runs padded to `steps`."""

    rows: Tensor  # [r] indices of the rows in the batch
    first_row: int | None  # index of the first row if the rows are consecutive
    steps: int
    source: Tensor  # [n] indices of the valid steps in the N flat steps
    first_step: int | None  # first index of `source` if its indices are consecutive
    place: Tensor | None  # [n] positions in [steps * r], time outermost; None if there is no padding


class TimeOrder(NamedTuple):
    """The N flat steps of R rows by time, and at each time from the longest row to the shortest, so that the rows that
    go on are always the first ones."""

    order: Indices  # [N] index of the flat step at each place
    times: Indices  # [T + 1] place of the first step of each time, then N
    rows: Indices  # the rows with at least one step, from the longest to the shortest

    @classmethod
    def of(cls, lengths: Indices, among: slice = slice(None)) -> TimeOrder:
        """Return the order of rows of these lengths, or of the steps of some of the rows."""
        rows = np.arange(len(lengths))[among]
        rows = rows[(-lengths[rows]).argsort(kind="stable")]
        ordered = lengths[rows]
        rows = rows[: int(np.count_nonzero(ordered))]
        ordered = ordered[: len(rows)]
        longest = int(ordered[0]) if len(rows) else 0
        active = np.searchsorted(-ordered, -np.arange(longest), side="left")  # [T] rows with more than t steps
        times = np.zeros(longest + 1, np.int64)
        active.cumsum(out=times[1:])
        start = lengths.cumsum() - lengths
        rank = np.arange(times[-1]) - np.repeat(times[:-1], active)
        order = start[rows][rank] + np.repeat(np.arange(longest), active)
        return cls(order, times, rows)


class BucketLayout(NamedTuple):
    """Assignment of the N flat steps of R rows to length buckets, computed on the CPU without waiting for a device."""

    buckets: tuple[Bucket, ...]
    restore: Tensor | None  # [N] from bucket order to flat order; None if they are the same
    padded: int  # number of steps that the buckets run, including padding

    def to(self, device: torch.device) -> BucketLayout:
        """Move all index tensors to `device`."""

        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device, non_blocking=True)

        buckets = [
            b._replace(rows=b.rows.to(device), source=b.source.to(device), place=move(b.place)) for b in self.buckets
        ]
        return BucketLayout(tuple(buckets), move(self.restore), self.padded)


class SequenceLayout:
    """How the N flat steps of R rows are run: in length buckets by PyTorch, in the order of time by compiled kernels.

    On a CPU, each form is made when it is first used; for other devices, the buckets are made at once, so that no step
    of the optimizer waits for them.
    """

    def __init__(self, lengths: Indices | Sequence[int], max_waste: float, device: torch.device) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self._max_waste, self._device = max_waste, device
        self._buckets: BucketLayout | None = None
        if device.type != "cpu":
            self._buckets = bucket_layout(self.lengths, max_waste, device)

    @property
    def buckets(self) -> BucketLayout:
        if self._buckets is None:
            self._buckets = bucket_layout(self.lengths, self._max_waste, self._device)
        return self._buckets

    @cached_property
    def time_order(self) -> TimeOrder:
        return TimeOrder.of(self.lengths)

    def time_orders(self, most: int) -> list[TimeOrder]:
        """Return one order after the other that together have all steps, each at most `most` or those of one row."""
        orders, first, steps = [], 0, 0
        for row, length in enumerate(self.lengths.tolist()):
            if row > first and steps + length > most:
                orders.append(TimeOrder.of(self.lengths, slice(first, row)))
                first, steps = row, 0
            steps += length
        return [*orders, TimeOrder.of(self.lengths, slice(first, None))]

    @property
    def padded(self) -> int:
        """Number of steps that are run, including padding; kernels have none."""
        return int(self.lengths.sum()) if self._buckets is None else self._buckets.padded

    def to(self, device: torch.device) -> SequenceLayout:
        """Return a copy for computation on `device`."""
        moved = SequenceLayout(self.lengths, self._max_waste, torch.device("cpu"))
        moved._device, moved._buckets = device, self.buckets.to(device)
        return moved


class Steps(NamedTuple):
    """The N valid steps of R rows, row by row, without padding."""

    obs: Tensor  # [N, D]
    blueprint_indices: Tensor  # [N, S]
    actions: Tensor  # [N, H]
    masks: Tensor  # [N, A] in force
    state: PolicyState  # before each row's first step, [n, R, width]
    layout: SequenceLayout


class CallCost(NamedTuple):
    """Fixed cost of a fused call, in units of one step of one row. The default allows any padding below the bound."""

    call: float = float("inf")
    per_step: float = 0.0  # per step of the longest row


CPU_CALL = CallCost(100.0, 3.0)
"""Measured with 128 units: 1 ms per call, 29 us per time step, and 10 us per step of each row."""


def length_buckets(
    lengths: Sequence[int],
    max_waste: float,
    cost: CallCost = CallCost(),  # noqa: B008 (immutable)
) -> list[tuple[list[int], int]]:
    """Partition the rows with at least one step into buckets; returns (rows, longest length) per bucket.

    In each bucket, padded / valid steps stays below `max_waste`, and padding costs less than another call would. The
    partition is greedy, from the longest row down, because many rows of equal length leave room for the padding of
    shorter ones.
    """
    order = sorted(((n, row) for row, n in enumerate(lengths) if n > 0), key=lambda item: (-item[0], item[1]))
    buckets: list[tuple[list[int], int]] = []
    rows: list[int] = []
    total = steps = 0
    for n, row in order:
        padded = steps * (len(rows) + 1)
        too_costly = padded - (total + n) > cost.call + cost.per_step * n
        if rows and (padded > max_waste * (total + n) or too_costly):
            buckets.append((rows, steps))
            rows, total = [], 0
        if not rows:
            steps = n
        rows.append(row)
        total += n
    if rows:
        buckets.append((rows, steps))
    return buckets


def bucket_layout(lengths: Indices | Sequence[int], max_waste: float, device: torch.device) -> BucketLayout:
    """Build the buckets of rows of these lengths, for computation on `device`. For `max_waste` see `length_buckets`."""
    size = np.asarray(lengths, dtype=np.int64)
    first = size.cumsum() - size
    buckets, order, padded = [], [], 0
    for rows, steps in length_buckets(size.tolist(), max_waste, CPU_CALL if device.type == "cpu" else CallCost()):
        own = size[rows]
        inside = np.arange(steps)[None, :] < own[:, None]  # [r, steps]
        source = (first[rows][:, None] + np.arange(steps))[inside]
        place = (np.arange(steps) * len(rows) + np.arange(len(rows))[:, None])[inside]
        full = bool(inside.all())
        buckets.append(
            Bucket(
                torch.tensor(rows),
                _start(np.asarray(rows)),
                steps,
                torch.from_numpy(source),
                _start(source),
                None if full else torch.from_numpy(place),
            )
        )
        order.append(source)
        padded += inside.size
    flat = np.concatenate(order) if order else np.zeros(0, dtype=np.int64)
    restore = None if _start(flat) == 0 else torch.from_numpy(flat.argsort())
    return BucketLayout(tuple(buckets), restore, padded).to(device)


def _start(indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int | None:
    """Return the first index if the indices are consecutive, else None."""
    if len(indices) and bool((np.diff(indices) == 1).all()):
        return int(indices[0])
    return None


RunBucket = Callable[[Tensor, PolicyState], tuple[Tensor, PolicyState]]
"""Maps `[T, r, features]` and the state before it to `[T, r, outputs]` and the state after it."""


def run_layout(
    run: RunBucket, inputs: Tensor, layout: BucketLayout, state: PolicyState, outputs: int
) -> tuple[Tensor, PolicyState]:
    """Apply `run` to every bucket of flat `inputs [N, features]`, from `state` before each row's first step.

    Returns outputs `[N, outputs]` and the rows' states after their last steps. The state of rows in padded buckets,
    and of rows without steps, is returned unchanged.
    """
    pieces, after = [], state
    for bucket in layout.buckets:
        r, n = bucket.rows.shape[0], bucket.source.shape[0]
        start, row = bucket.first_step, bucket.first_row
        own = inputs.index_select(0, bucket.source) if start is None else inputs[start : start + n]
        before = PolicyState(
            *(t.index_select(1, bucket.rows) if row is None else t[:, row : row + r].contiguous() for t in state)
        )
        if bucket.place is None:
            padded = own.view(r, bucket.steps, -1).transpose(0, 1)
        else:
            padded = own.new_zeros(bucket.steps * r, own.shape[1]).index_copy(0, bucket.place, own)
            padded = padded.view(bucket.steps, r, -1)
        out, last = run(padded, before)
        if bucket.place is None:
            pieces.append(out.transpose(0, 1).reshape(n, -1))
            after = PolicyState(
                *(t.index_copy(1, bucket.rows, new.to(t.dtype)) for t, new in zip(after, last, strict=True))
            )
        else:
            pieces.append(out.flatten(0, 1).index_select(0, bucket.place))
    if not pieces:
        return inputs.new_empty(0, outputs), state
    joined = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    return joined if layout.restore is None else joined.index_select(0, layout.restore), after
