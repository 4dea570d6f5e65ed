"""Sequences of unequal length, and how a fused recurrence runs over them: one call per length bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.policy.state import PolicyState


class Bucket(NamedTuple):
    """r rows that one fused call runs, padded to `steps`; n valid steps."""

    rows: Tensor  # [r] of the batch
    first_row: int | None  # where the rows are consecutive
    steps: int
    source: Tensor  # [n] of the N flat steps
    first_step: int | None  # where the source is consecutive
    place: Tensor | None  # [n] in [steps * r], time outermost; None where nothing is padded


class BucketLayout(NamedTuple):
    """Where the N flat steps of R rows lie in length buckets; made on the host, so that no device is waited for."""

    buckets: tuple[Bucket, ...]
    restore: Tensor | None  # [N] from bucket order to flat order; None where they agree
    padded: int  # steps that the buckets run, padding included

    def to(self, device: torch.device) -> BucketLayout:
        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device, non_blocking=True)

        buckets = [
            b._replace(rows=b.rows.to(device), source=b.source.to(device), place=move(b.place)) for b in self.buckets
        ]
        return BucketLayout(tuple(buckets), move(self.restore), self.padded)

    def pack(self) -> list[Tensor]:
        """As two tensors, of two entries at least: all indices, and on the CPU a table of the buckets."""
        device = self.buckets[0].rows.device if self.buckets else torch.device("cpu")
        parts = [t for b in self.buckets for t in (b.rows, b.source, b.place) if t is not None]
        unread = torch.zeros(2, dtype=torch.long, device=device)
        table = [
            (b.rows.shape[0], b.source.shape[0], b.steps, _or(b.first_row), _or(b.first_step), b.place is not None)
            for b in self.buckets
        ]
        whole = (self.padded, 0, 0, 0, 0, self.restore is not None)
        return [
            torch.cat([*parts, *([] if self.restore is None else [self.restore]), unread]),
            torch.tensor([*table, whole, whole], dtype=torch.long),
        ]

    @classmethod
    def unpack(cls, packed: Sequence[Tensor]) -> BucketLayout:
        indices, table = packed
        *sizes, (padded, _, _, _, _, restores), _ = table.tolist()
        buckets, at, steps_in_all = [], 0, 0

        def take(count: int) -> Tensor:
            nonlocal at
            at += count
            return indices[at - count : at]

        for r, n, steps, first_row, first_step, padding in sizes:
            start, first = (None if i < 0 else i for i in (first_row, first_step))
            buckets.append(Bucket(take(r), start, steps, take(n), first, take(n) if padding else None))
            steps_in_all += n
        return cls(tuple(buckets), take(steps_in_all) if restores else None, padded)


def _or(index: int | None) -> int:
    return -1 if index is None else index


class Steps(NamedTuple):
    """The valid steps of R rows, row by row, without padding."""

    obs: Tensor  # [N, D]
    blueprint_indices: Tensor  # [N, S]
    actions: Tensor  # [N, H]
    masks: Tensor  # [N, A] in force
    state: PolicyState  # before each row's first step, [n, R, width]
    layout: BucketLayout


class CallCost(NamedTuple):
    """What a fused call costs besides its rows' steps, in steps: more buckets or more padding is cheaper by it."""

    call: float = float("inf")
    per_step: float = 0.0  # of the longest row


CPU_CALL = CallCost(100.0, 3.0)
"""Measured at 128 units: 1 ms a call and 29 us a step of its rows, against 10 us for each row's step."""


def length_buckets(
    lengths: Sequence[int],
    max_waste: float,
    cost: CallCost = CallCost(),  # noqa: B008 (immutable)
) -> list[tuple[list[int], int]]:
    """Rows sorted by length and cut greedily so that padded / valid stays below `max_waste` in each bucket.

    From the longest down: many rows of one length leave room for shorter ones. A bucket also ends where its padding
    would cost more than another call.
    """
    order = sorted(((n, row) for row, n in enumerate(lengths) if n > 0), key=lambda item: (-item[0], item[1]))
    buckets: list[tuple[list[int], int]] = []
    rows: list[int] = []
    total = steps = 0
    for n, row in order:
        padded = steps * (len(rows) + 1)
        dear = padded - (total + n) > cost.call + cost.per_step * n
        if rows and (padded > max_waste * (total + n) or dear):
            buckets.append((rows, steps))
            rows, total = [], 0
        if not rows:
            steps = n
        rows.append(row)
        total += n
    if rows:
        buckets.append((rows, steps))
    return buckets


def make_layout(lengths: Sequence[int], max_waste: float, device: torch.device) -> BucketLayout:
    """Of rows of `lengths` steps, for a device."""
    size = np.asarray(lengths, dtype=np.int64)
    first = size.cumsum() - size
    buckets, order, padded = [], [], 0
    for rows, steps in length_buckets(lengths, max_waste, CPU_CALL if device.type == "cpu" else CallCost()):
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
    """The first of consecutive indices; None for others."""
    if len(indices) and bool((np.diff(indices) == 1).all()):
        return int(indices[0])
    return None


Run = Callable[[Tensor, PolicyState], tuple[Tensor, PolicyState]]
"""`[T, r, features]` and the state before it > `[T, r, outputs]` and the state after it."""


def run_layout(
    run: Run, inputs: Tensor, layout: BucketLayout, state: PolicyState, outputs: int
) -> tuple[Tensor, PolicyState]:
    """Outputs `[N, outputs]` of flat `inputs [N, features]`, and the rows' states after their last steps.

    `state` is each row's own before its first step. The states after are those of rows in buckets without padding;
    for other rows, and rows without steps, they are the ones before.
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
