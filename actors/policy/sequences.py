"""Sequences of unequal length, and the fused LSTM over them: one call per length bucket, no Python loop over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from actors.policy.state import PolicyState


class SequenceBatch(NamedTuple):
    """R rows of at most L steps, right-padded; what padding holds is never read."""

    obs: Tensor  # [R, L, D]
    blueprint_indices: Tensor  # [R, L, S]
    actions: Tensor  # [R, L, H]
    masks: Tensor  # [R, L, A] in force
    valid: Tensor  # [R, L] bool, True on a prefix of each row
    state: PolicyState  # before each row's first step, [num_layers, R, hidden]


class Bucket(NamedTuple):
    """r rows that one fused call runs, padded to `steps`; n valid steps."""

    rows: Tensor  # [r] of the batch
    first_row: int | None  # where the rows are consecutive
    steps: int
    source: Tensor  # [n] of the N flat steps
    first_step: int | None  # where the source is consecutive
    place: Tensor | None  # [n] in [steps * r], time outermost; None where nothing is padded


class Layout(NamedTuple):
    """Where the N flat steps of R rows lie in length buckets; made on the host, so that no device is waited for."""

    buckets: tuple[Bucket, ...]
    restore: Tensor | None  # [N] from bucket order to flat order; None where they agree
    padded: int  # steps that the buckets run, padding included

    def to(self, device: torch.device) -> Layout:
        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device, non_blocking=True)

        buckets = [
            b._replace(rows=b.rows.to(device), source=b.source.to(device), place=move(b.place)) for b in self.buckets
        ]
        return Layout(tuple(buckets), move(self.restore), self.padded)


class Steps(NamedTuple):
    """The valid steps of R rows, row by row, without padding."""

    obs: Tensor  # [N, D]
    blueprint_indices: Tensor  # [N, S]
    actions: Tensor  # [N, H]
    masks: Tensor  # [N, A] in force
    state: PolicyState  # before each row's first step, [num_layers, R, hidden]
    layout: Layout


def length_buckets(lengths: Sequence[int], max_waste: float) -> list[tuple[list[int], int]]:
    """Rows sorted by length and cut greedily so that padded / valid stays below `max_waste` in each bucket.

    From the longest down: many rows of one length leave room for shorter ones, and few buckets are fast.
    """
    order = sorted(((n, row) for row, n in enumerate(lengths) if n > 0), key=lambda item: (-item[0], item[1]))
    buckets: list[tuple[list[int], int]] = []
    rows: list[int] = []
    total = steps = 0
    for n, row in order:
        if rows and steps * (len(rows) + 1) > max_waste * (total + n):
            buckets.append((rows, steps))
            rows, total = [], 0
        if not rows:
            steps = n
        rows.append(row)
        total += n
    if rows:
        buckets.append((rows, steps))
    return buckets


def make_layout(lengths: Sequence[int], max_waste: float) -> Layout:
    """Of rows of `lengths` steps, on the CPU."""
    size = np.asarray(lengths, dtype=np.int64)
    first = size.cumsum() - size
    buckets, order, padded = [], [], 0
    for rows, steps in length_buckets(lengths, max_waste):
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
    return Layout(tuple(buckets), restore, padded)


def _start(indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int | None:
    """The first of consecutive indices; None for others."""
    if len(indices) and bool((np.diff(indices) == 1).all()):
        return int(indices[0])
    return None


def flatten(sequence: SequenceBatch, max_waste: float = 1.3) -> Steps:
    """The valid steps alone. Reads `valid` on the host."""
    valid = sequence.valid
    return Steps(
        sequence.obs[valid],
        sequence.blueprint_indices[valid],
        sequence.actions[valid],
        sequence.masks[valid],
        sequence.state,
        make_layout(valid.sum(1).tolist(), max_waste).to(valid.device),
    )


def run_lstm(lstm: nn.LSTM, inputs: Tensor, layout: Layout, state: PolicyState) -> tuple[Tensor, PolicyState]:
    """Outputs `[N, hidden]` of flat `inputs [N, features]`, and `[num_layers, R, hidden]` states after the last steps.

    `state` is each row's own before its first step. The states after are those of rows in buckets without padding;
    for other rows, and rows without steps, they are the ones before.
    """
    pieces, after = [], list(state)
    for bucket in layout.buckets:
        r, n = bucket.rows.shape[0], bucket.source.shape[0]
        start, row = bucket.first_step, bucket.first_row
        own = inputs.index_select(0, bucket.source) if start is None else inputs[start : start + n]
        before = [t.index_select(1, bucket.rows) if row is None else t[:, row : row + r].contiguous() for t in state]
        if bucket.place is None:
            padded = own.view(r, bucket.steps, -1).transpose(0, 1)
        else:
            padded = own.new_zeros(bucket.steps * r, own.shape[1]).index_copy(0, bucket.place, own)
            padded = padded.view(bucket.steps, r, -1)
        out, last = lstm(padded, (before[0], before[1]))
        if bucket.place is None:
            pieces.append(out.transpose(0, 1).reshape(n, -1))
            after = [t.index_copy(1, bucket.rows, new.to(t.dtype)) for t, new in zip(after, last, strict=True)]
        else:
            pieces.append(out.flatten(0, 1).index_select(0, bucket.place))
    if not pieces:
        return inputs.new_empty(0, lstm.hidden_size), state
    outputs = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    return outputs if layout.restore is None else outputs.index_select(0, layout.restore), PolicyState(*after)
