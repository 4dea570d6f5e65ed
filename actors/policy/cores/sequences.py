"""Batches of sequences of unequal length, which a fused recurrence runs over with one call per length bucket."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.policy.state import PolicyState

Indices = NDArray[np.int64]


class Bucket(NamedTuple):
    """r sequences with n valid steps in total, which one fused call runs padded to `steps`."""

    sequences: Tensor  # [r] their indices in the batch
    steps: int
    source: Tensor  # [n] indices of the valid steps in the N flat steps
    place: Tensor | None  # [n] positions in [steps * r], time outermost; None if there is no padding


class TimeOrder(NamedTuple):
    """The N flat steps of R sequences by time, and at each time from the longest sequence to the shortest, so that the
    sequences that go on are always the first ones."""

    order: Indices  # [N] index of the flat step at each place
    times: Indices  # [T + 1] place of the first step of each time, then N
    sequences: Indices  # the sequences with at least one step, from the longest to the shortest

    @classmethod
    def from_lengths(cls, lengths: Indices, among: slice = slice(None)) -> TimeOrder:
        """Return the order of sequences of these lengths, or of the steps of some of the sequences."""
        sequences = np.arange(len(lengths))[among]
        sequences = sequences[(-lengths[sequences]).argsort(kind="stable")]
        ordered = lengths[sequences]
        sequences = sequences[: int(np.count_nonzero(ordered))]
        ordered = ordered[: len(sequences)]
        longest = int(ordered[0]) if len(sequences) else 0
        active = np.searchsorted(-ordered, -np.arange(longest), side="left")  # [T] sequences with more than t steps
        times = np.zeros(longest + 1, np.int64)
        active.cumsum(out=times[1:])
        start = lengths.cumsum() - lengths
        rank = np.arange(times[-1]) - np.repeat(times[:-1], active)
        order = start[sequences][rank] + np.repeat(np.arange(longest), active)
        return cls(order, times, sequences)


class BucketLayout(NamedTuple):
    """Assignment of the N flat steps of R sequences to length buckets, computed on the CPU without waiting for a
    device."""

    buckets: tuple[Bucket, ...]
    restore: Tensor  # [N] from bucket order to flat order
    padded: int  # number of steps that the buckets run, including padding


class SequenceLayout:
    """How the N flat steps of R sequences are run: in length buckets by PyTorch, in the order of time by compiled
    kernels.

    On a CPU, each form is made when it is first used; for other devices, the buckets are made at once, so that no step
    of the optimizer waits for them.
    """

    def __init__(self, lengths: Indices | Sequence[int], max_waste: float, device: torch.device) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self._max_waste, self._device = max_waste, device
        if device.type != "cpu":
            self.buckets  # noqa: B018 (made here)

    @cached_property
    def buckets(self) -> BucketLayout:
        return bucket_layout(self.lengths, self._max_waste, self._device)

    @cached_property
    def time_order(self) -> TimeOrder:
        return TimeOrder.from_lengths(self.lengths)

    def time_orders(self, most: int) -> list[TimeOrder]:
        """Return one order after the other that together have all steps, each at most `most` or those of one
        sequence."""
        orders, first, steps = [], 0, 0
        for sequence, length in enumerate(self.lengths.tolist()):
            if sequence > first and steps + length > most:
                orders.append(TimeOrder.from_lengths(self.lengths, slice(first, sequence)))
                first, steps = sequence, 0
            steps += length
        return [*orders, TimeOrder.from_lengths(self.lengths, slice(first, None))]

    @property
    def padded(self) -> int:
        """Number of steps that are run, including padding; kernels have none."""
        return self.buckets.padded if "buckets" in vars(self) else int(self.lengths.sum())


class Steps(NamedTuple):
    """The N valid steps of R sequences, one after the other, without padding."""

    obs: Tensor  # [N, D]
    blueprint_indices: Tensor  # [N, S]
    actions: Tensor  # [N, H]
    masks: Tensor  # [N, A] in force
    state: PolicyState  # before each sequence's first step, [n, R, width]
    layout: SequenceLayout


CALL, CALL_STEP = 100.0, 3.0
"""Fixed cost of a fused call on a CPU, and cost per step of its longest sequence, in units of one step of one sequence.
Measured with 128 units: 1 ms per call, 29 us per time step, and 10 us per step of each sequence."""


def length_buckets(lengths: Sequence[int], max_waste: float, on_cpu: bool = False) -> list[tuple[list[int], int]]:
    """Partition the sequences with at least one step into buckets; returns (sequences, longest length) per bucket.

    In each bucket, padded / valid steps stays below `max_waste`, and on a CPU padding costs less than another call
    would. The partition is greedy, from the longest sequence down, because many sequences of equal length leave room
    for the padding of shorter ones.
    """
    order = sorted(((n, sequence) for sequence, n in enumerate(lengths) if n > 0), key=lambda item: (-item[0], item[1]))
    buckets: list[tuple[list[int], int]] = []
    sequences: list[int] = []
    total = steps = 0
    for n, sequence in order:
        padded = steps * (len(sequences) + 1)
        too_costly = on_cpu and padded - (total + n) > CALL + CALL_STEP * n
        if sequences and (padded > max_waste * (total + n) or too_costly):
            buckets.append((sequences, steps))
            sequences, total = [], 0
        if not sequences:
            steps = n
        sequences.append(sequence)
        total += n
    if sequences:
        buckets.append((sequences, steps))
    return buckets


def bucket_layout(lengths: Indices | Sequence[int], max_waste: float, device: torch.device) -> BucketLayout:
    """Build the buckets of sequences of these lengths, for computation on `device`. For `max_waste` see
    `length_buckets`."""
    size = np.asarray(lengths, dtype=np.int64)
    first = size.cumsum() - size
    buckets, order, padded = [], [np.zeros(0, np.int64)], 0
    for sequences, steps in length_buckets(size.tolist(), max_waste, device.type == "cpu"):
        inside = np.arange(steps)[None, :] < size[sequences][:, None]  # [r, steps]
        source = (first[sequences][:, None] + np.arange(steps))[inside]
        place = (np.arange(steps) * len(sequences) + np.arange(len(sequences))[:, None])[inside]
        places = None if inside.all() else torch.from_numpy(place).to(device, non_blocking=True)
        buckets.append(Bucket(torch.tensor(sequences).to(device), steps, torch.from_numpy(source).to(device), places))
        order.append(source)
        padded += inside.size
    restore = torch.from_numpy(np.concatenate(order).argsort()).to(device, non_blocking=True)
    return BucketLayout(tuple(buckets), restore, padded)
