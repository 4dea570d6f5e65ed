"""Episodes cut into rows that the core runs: each from a stored state, some with steps before them to warm it up.

Which steps a minibatch reads is worked out on the host, before the first of them is used, so that no minibatch waits
for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.policy.cores.sequences import BucketLayout, Steps, make_layout
from actors.policy.state import PolicyState
from learner.ppo.batching import Batch

Rows = NDArray[np.int64]


class Chunks(NamedTuple):
    """The N valid steps of a batch, in R rows; the rows of one episode follow each other."""

    obs: Tensor  # [N, D]
    blueprint_indices: Tensor  # [N, S]
    actions: Tensor  # [N, H]
    masks: Tensor  # [N, A]
    places: Tensor  # [N] of each step in the flattened [E * T] batch
    state: PolicyState  # stored before each row's burn-in, or before the row, [num_layers, R, hidden]
    lengths: Rows  # [R] steps
    burn_in: Rows  # [R] steps before the row, which belong to the rows before it

    @property
    def first(self) -> Rows:
        """`[R]`: each row's first step among the N."""
        return self.lengths.cumsum() - self.lengths


class Reading(NamedTuple):
    """Some consecutive steps of some rows."""

    rows: Tensor  # [r]
    source: Tensor | None  # [n] among the N steps; None = all of them, in order
    layout: BucketLayout


class Part(NamedTuple):
    """What one evaluation reads: a minibatch, or the whole batch."""

    chunk: Reading  # rows count in the batch
    burn_in: Reading | None  # rows count in this part


def cut(batch: Batch, chunk_length: int, state_stride: int, burn_in: int = 0) -> Chunks:
    """Every episode in rows of `chunk_length` steps; rows in mid-episode have up to `burn_in` steps before them."""
    for name, steps in (("chunks", chunk_length), ("burn-in", burn_in)):
        if steps % state_stride and chunk_length < batch.valid.shape[1]:
            raise ValueError(f"{name} of {steps} steps: states are stored every {state_stride} steps")
    episode_lengths = batch.valid.sum(1).cpu().numpy()
    per_episode = -(-episode_lengths // chunk_length)
    episode = np.repeat(np.arange(len(episode_lengths)), per_episode)
    start = (np.arange(len(episode)) - np.repeat(per_episode.cumsum() - per_episode, per_episode)) * chunk_length
    before = np.minimum(burn_in, start)
    device = batch.valid.device
    row, slot = (torch.from_numpy(a).to(device) for a in (episode, (start - before) // state_stride))
    places = batch.valid.flatten().nonzero().squeeze(1)
    obs, blueprints, actions, masks = (
        t.flatten(0, 1).index_select(0, places)
        for t in (batch.obs, batch.blueprint_indices, batch.actions, batch.masks)
    )
    return Chunks(
        obs,
        blueprints,
        actions,
        masks,
        places,
        PolicyState(*(t[:, row, slot].contiguous() for t in batch.states)),
        np.minimum(chunk_length, episode_lengths[episode] - start),
        before,
    )


def uncut(batch: Batch, state: PolicyState) -> Chunks:
    """Whole episodes, each from its row of `state` `[n, E, width]` and not from what its actor stored."""
    return cut(batch._replace(states=PolicyState(*(t.unsqueeze(2) for t in state))), batch.valid.shape[1], 1)


def whole(chunks: Chunks, max_waste: float) -> Part:
    """All rows, their steps in the order of `chunks`."""
    return _part(chunks, np.arange(len(chunks.lengths)), max_waste)


def minibatch(chunks: Chunks, rows: Rows, max_waste: float) -> Part:
    """Some whole rows, by length, so that rows of one bucket lie side by side."""
    return _part(chunks, rows[(-chunks.lengths[rows]).argsort(kind="stable")], max_waste)


def _part(chunks: Chunks, rows: Rows, max_waste: float) -> Part:
    warmed = np.flatnonzero(chunks.burn_in[rows])
    warmed = warmed[(-chunks.burn_in[rows[warmed]]).argsort(kind="stable")]
    steps = chunks.burn_in[rows[warmed]]
    first, device = chunks.first, chunks.places.device
    return Part(
        _reading(rows, first[rows], chunks.lengths[rows], max_waste, len(chunks.places), device),
        # A state is what is wanted, and padding would move it: rows of equal burn-in only.
        _reading(warmed, first[rows[warmed]] - steps, steps, 1.0, -1, device) if len(warmed) else None,
    )


def _reading(
    rows: Rows, first: Rows, lengths: Rows, max_waste: float, everything: int, device: torch.device
) -> Reading:
    index = np.repeat(first - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum())
    in_order = len(index) == everything and bool((index == np.arange(everything)).all())
    return Reading(
        torch.from_numpy(rows).to(device),
        None if in_order else torch.from_numpy(index).to(device),
        make_layout(lengths.tolist(), max_waste, device),
    )


def pick(t: Tensor, index: Tensor | None) -> Tensor:
    return t if index is None else t.index_select(0, index)


def load(chunks: Chunks, part: Part, advance: Callable[[Steps], PolicyState]) -> Steps:
    """The steps of a part, from the stored states; `advance` replays burn-in by the present weights."""
    state = PolicyState(*(t.index_select(1, part.chunk.rows) for t in chunks.state))
    if part.burn_in is not None:
        rows = part.burn_in.rows
        before = PolicyState(*(t.index_select(1, rows) for t in state))
        warm = advance(_steps(chunks, part.burn_in, before))
        state = PolicyState(*(t.index_copy(1, rows, w.to(t.dtype)) for t, w in zip(state, warm, strict=True)))
    return _steps(chunks, part.chunk, state)


def _steps(chunks: Chunks, reading: Reading, state: PolicyState) -> Steps:
    return Steps(
        pick(chunks.obs, reading.source),
        pick(chunks.blueprint_indices, reading.source),
        pick(chunks.actions, reading.source),
        pick(chunks.masks, reading.source),
        state,
        reading.layout,
    )
