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
    """n consecutive steps of each of r chunks of a batch."""

    chunks: Tensor  # [r] their indices
    source: Tensor | None  # [n] indices of the batch's N steps; None = all of them, in order
    layout: SequenceLayout

    def select(self, steps: Tensor) -> Tensor:
        """Return `[n, ...]`, this minibatch's entries of `steps` `[N, ...]` or `[N + P, ...]`."""
        return steps[: self.layout.lengths.sum()] if self.source is None else steps.index_select(0, self.source)

    def steps(self, batch: Batch) -> Steps:
        """Return the minibatch's steps, each chunk from its stored state."""
        return Steps(
            obs=self.select(batch.obs),
            blueprint_indices=self.select(batch.blueprint_indices),
            actions=self.select(batch.actions),
            masks=self.select(batch.masks),
            state=batch.state.rows(self.chunks),
            layout=self.layout,
        )


def whole_batch(batch: Batch) -> Minibatch:
    """Return a minibatch of all chunks, with steps in the order of the batch."""
    return _minibatch(batch, np.arange(len(batch.chunk_lengths)))


def minibatch(batch: Batch, chunks: Counts) -> Minibatch:
    """Return a minibatch of some chunks of a batch, sorted by length."""
    return _minibatch(batch, chunks[(-batch.chunk_lengths[chunks]).argsort(kind="stable")])


def _minibatch(batch: Batch, chunks: Counts) -> Minibatch:
    lengths, device = batch.chunk_lengths[chunks], batch.rewards.device
    index = _ranges(batch.first_steps[chunks], lengths)
    in_order = len(index) == batch.size and bool((index == np.arange(batch.size)).all())
    source = None if in_order else torch.from_numpy(index).to(device)
    return Minibatch(torch.from_numpy(chunks).to(device), source, SequenceLayout(lengths, PADDING_WASTE, device))


def replay(batch: Batch, advance: Callable[[Steps], PolicyState]) -> Batch:
    """Return the batch with chunks that start from the states after their burn-in, as `advance` computes them from
    steps, whose actions do not matter and are left out."""
    chunks = np.flatnonzero(batch.burn_in)
    if not len(chunks):
        return batch
    device, chunks = batch.rewards.device, chunks[(-batch.burn_in[chunks]).argsort(kind="stable")]
    source = torch.from_numpy(_ranges(*batch.replayed[chunks].reshape(-1, 2).T)).to(device)
    index = torch.from_numpy(chunks).to(device)
    steps = Steps(
        obs=batch.obs.index_select(0, source),
        blueprint_indices=batch.blueprint_indices.index_select(0, source),
        actions=batch.actions[:0],
        masks=batch.masks[:0],
        state=batch.state.rows(index),
        # Padding would change the state after the last step, so each bucket has a single length.
        layout=SequenceLayout(batch.burn_in[chunks], 1.0, device),
    )
    replayed = (t.index_copy(1, index, w.to(t.dtype)) for t, w in zip(batch.state, advance(steps), strict=True))
    return batch._replace(state=PolicyState(*replayed), replayed=np.zeros_like(batch.replayed))


def _ranges(first: Counts, lengths: Counts) -> Counts:
    """Concatenate the ranges `first[i], first[i] + 1, ...` of `lengths[i]` numbers each."""
    return np.asarray(np.repeat(first - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum()), np.int64)
