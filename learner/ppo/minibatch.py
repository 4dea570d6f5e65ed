"""`Minibatch`: which steps of a batch one evaluation reads.

Minibatches are planned on the host before the first of them is used, so that no step of the optimizer waits for the
device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.policy.cores.sequences import SequenceLayout, Steps
from actors.policy.state import PolicyState
from learner.ppo.batch import Batch, Counts

PADDING_WASTE = 1.3
"""Largest ratio of padded to valid steps in a length bucket; networks that run by kernels need no padding."""


class Minibatch(NamedTuple):
    """n consecutive steps of each of r rows, which are chunks of a batch or, during burn-in, rows of the minibatch."""

    rows: Tensor  # [r]
    source: Tensor | None  # [n] of the batch's N steps, or, during burn-in, N + P; None = all N of them, in order
    layout: SequenceLayout
    burn_in: Minibatch | None  # steps that are replayed before some of the rows

    def select(self, steps: Tensor) -> Tensor:
        """Return `[n, ...]`, this minibatch's entries of `steps` `[N, ...]` or `[N + P, ...]`."""
        return steps[: self.layout.lengths.sum()] if self.source is None else steps.index_select(0, self.source)

    def load(self, batch: Batch, advance: Callable[[Steps], PolicyState]) -> Steps:
        """Return the minibatch's steps, each row from its stored state; `advance` replays the burn-in with the current
        weights."""
        steps = self._replayed(batch, self.start(batch, advance))
        return steps._replace(actions=self.select(batch.actions), masks=self.select(batch.masks))

    def start(self, batch: Batch, advance: Callable[[Steps], PolicyState]) -> PolicyState:
        """Return the state before the first step of each row, after a replay of its burn-in."""
        state = batch.state.rows(self.rows)
        if self.burn_in is None:
            return state
        warm = advance(self.burn_in._replayed(batch, state.rows(self.burn_in.rows)))
        replaced = (t.index_copy(1, self.burn_in.rows, w.to(t.dtype)) for t, w in zip(state, warm, strict=True))
        return PolicyState(*replaced)

    def _replayed(self, batch: Batch, state: PolicyState) -> Steps:
        """Return steps without actions, which do not affect the state."""
        return Steps(
            obs=self.select(batch.obs),
            blueprint_indices=self.select(batch.blueprint_indices),
            actions=batch.actions[:0],
            masks=batch.masks[:0],
            state=state,
            layout=self.layout,
        )


def whole_batch(batch: Batch, max_waste: float = PADDING_WASTE) -> Minibatch:
    """Return a minibatch of all chunks, with steps in the order of the batch. For `max_waste` see `length_buckets`."""
    return _minibatch(batch, np.arange(len(batch.chunk_lengths)), max_waste)


def minibatch(batch: Batch, chunks: Counts, max_waste: float = PADDING_WASTE) -> Minibatch:
    """Return a minibatch of some chunks of a batch, sorted by length, so that the rows of a bucket are adjacent."""
    return _minibatch(batch, chunks[(-batch.chunk_lengths[chunks]).argsort(kind="stable")], max_waste)


def _minibatch(batch: Batch, chunks: Counts, max_waste: float) -> Minibatch:
    first, lengths, before = (a[chunks] for a in (batch.first_steps, batch.chunk_lengths, batch.burn_in))
    rows = np.flatnonzero(before)
    rows = rows[(-before[rows]).argsort(kind="stable")]
    device = batch.rewards.device
    burn_in = None
    if len(rows):
        source = torch.from_numpy(_ranges(*batch.replayed[chunks[rows]].reshape(-1, 2).T)).to(device)
        # Padding would change the state after the last step, so each bucket has a single length.
        layout = SequenceLayout(before[rows], 1.0, device)
        burn_in = Minibatch(torch.from_numpy(rows).to(device), source, layout, None)
    index = _ranges(first, lengths)
    in_order = len(index) == batch.size and bool((index == np.arange(batch.size)).all())
    return Minibatch(
        torch.from_numpy(chunks).to(device),
        None if in_order else torch.from_numpy(index).to(device),
        SequenceLayout(lengths, max_waste, device),
        burn_in,
    )


def _ranges(first: Counts, lengths: Counts) -> Counts:
    """Concatenate the ranges `first[i], first[i] + 1, ...` of `lengths[i]` numbers each."""
    return np.asarray(np.repeat(first - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum()), np.int64)
