"""Padded sequences, and the fused LSTM over them: one call per length bucket, no Python loop over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
    rows: Tensor  # [r] indices of rows
    steps: int  # longest of them


def length_buckets(lengths: list[int], max_waste: float) -> list[tuple[list[int], int]]:
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


def _placed(valid: Tensor, max_waste: float) -> Iterator[Bucket]:
    for rows, steps in length_buckets(valid.sum(1).tolist(), max_waste):
        yield Bucket(torch.tensor(rows, device=valid.device), steps)


def run_lstm(lstm: nn.LSTM, inputs: Tensor, valid: Tensor, state: PolicyState, max_waste: float = 1.3) -> Tensor:
    """Outputs `[N, hidden]` at valid steps, row by row, from inputs `[N, features]` at valid steps.

    `valid [R, L]` places them; `state` is each row's own state before its first step.
    """
    position = torch.full(valid.shape, -1, dtype=torch.long, device=valid.device)
    position[valid] = torch.arange(inputs.shape[0], device=valid.device)
    outputs = inputs.new_empty(inputs.shape[0], lstm.hidden_size)
    pieces, places = [], []
    for rows, steps in _placed(valid, max_waste):
        index = position[rows, :steps]  # [r, steps]
        here = index >= 0
        padded = inputs.new_zeros(*index.shape, inputs.shape[1])
        padded[here] = inputs[index[here]]
        initial = (state.h[:, rows].contiguous(), state.c[:, rows].contiguous())
        out, _ = lstm(padded.transpose(0, 1), initial)
        pieces.append(out.transpose(0, 1)[here])
        places.append(index[here])
    if not pieces:
        return outputs
    return outputs.index_copy(0, torch.cat(places), torch.cat(pieces))
