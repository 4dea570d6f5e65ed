"""`Batch`: the steps of some episodes, one after the other without padding, and the chunks that the network runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.policy.state import PolicyState
from actors.types.actions import forced_steps
from actors.types.episode import Episode, InvalidEpisode
from actors.types.spaces import Spaces

Counts = NDArray[np.int64]


class Batch(NamedTuple):
    """N steps of E episodes in R chunks: consecutive steps of one episode that the core runs from a stored state.
    Episodes, their chunks and their steps are in the same order. Counts are numpy arrays, so that minibatches are
    planned without waiting for the device."""

    obs: Tensor  # [N, D]
    blueprint_indices: Tensor  # [N, S]
    actions: Tensor  # [N, H]
    log_probs: Tensor  # [N, H] of the behaviour policy
    masks: Tensor  # [N, A] in force
    forced: Tensor  # [N] bool, steps with one legal joint action
    rewards: Tensor  # [N]
    version: Tensor  # [N] of the weights that chose each step
    grid_index: Tensor  # [N] of each step in the flattened [E, T] grid that `to_rows` pads to
    terminated: Tensor  # [E] bool
    bootstrap_value: Tensor  # [E] denormalized
    seed_index: Tensor  # [E] equal for episodes with the same task and seed
    episode_lengths: Counts  # [E] steps
    chunk_lengths: Counts  # [R] steps
    burn_in: Counts  # [R] steps replayed before each chunk; they belong to the chunks before it
    state: PolicyState  # before each chunk's burn-in, each [n, R, width]

    @property
    def size(self) -> int:
        """N."""
        return self.rewards.shape[0]

    @property
    def first_steps(self) -> Counts:
        """Return `[R]`, the index of each chunk's first step."""
        return self.chunk_lengths.cumsum() - self.chunk_lengths

    def to(self, device: torch.device) -> Batch:
        tensors: dict[str, Any] = {k: v.to(device) for k, v in self._asdict().items() if isinstance(v, Tensor)}
        return self._replace(state=PolicyState(*(t.to(device) for t in self.state)), **tensors)

    def to_rows(self, steps: Tensor) -> Tensor:
        """Convert `[N]` to `[E, T]`: one episode per row, zeros after its end."""
        episodes, longest = len(self.episode_lengths), int(self.episode_lengths.max())
        return steps.new_zeros(episodes * longest).index_copy(0, self.grid_index, steps).view(episodes, longest)

    def from_rows(self, rows: Tensor) -> Tensor:
        """Convert `[E, T]` to `[N]`, the inverse of `to_rows`."""
        return rows.flatten().index_select(0, self.grid_index)

    @property
    def valid(self) -> Tensor:
        """Return `[E, T]` bool, False at the padding of `to_rows`."""
        return self.to_rows(torch.ones_like(self.forced))

    def uncut(self, state: PolicyState) -> Batch:
        """Return the same steps as whole episodes, each from its row of `state` `[n, E, width]` rather than from stored
        states."""
        return self._replace(
            chunk_lengths=self.episode_lengths, burn_in=np.zeros_like(self.episode_lengths), state=state
        )


def make_batch(episodes: Sequence[Episode], spaces: Spaces, chunk_length: int | None = None, burn_in: int = 0) -> Batch:
    """Concatenate episodes, and cut each into chunks of `chunk_length` steps (None: whole episodes). Chunks that start
    in mid-episode have up to `burn_in` steps before them. Raises `ValueError` if no states are stored at the first
    steps of chunks, and `InvalidEpisode` if the episodes' strides differ."""
    strides = {e.state_stride for e in episodes}
    if len(strides) > 1:
        raise InvalidEpisode(f"episodes of one batch store states at different strides: {sorted(strides)}")
    lengths, stride = np.array([len(e) for e in episodes]), strides.pop()
    longest = int(lengths.max())
    length = longest if chunk_length is None else chunk_length
    for name, steps in (("chunks", length), ("burn-in", burn_in)):
        if steps % stride and length < longest:
            raise ValueError(f"{name} of {steps} steps: states are stored every {stride} steps")

    episode, start = _chunk_starts(lengths, length)
    before = np.minimum(burn_in, start)
    stored = -(-lengths // stride)
    state_index = (stored.cumsum() - stored)[episode] + (start - before) // stride

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(e, name) for e in episodes])

    def states(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(e.states, name) for e in episodes], 1)[:, state_index])

    actions, masks = joined("actions"), joined("masks")
    seeds = {key: k for k, key in enumerate(dict.fromkeys((e.task_id, e.seed) for e in episodes))}
    within = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    return Batch(
        obs=torch.from_numpy(joined("obs")),
        blueprint_indices=torch.from_numpy(joined("blueprint_indices")),
        actions=torch.from_numpy(actions),
        log_probs=torch.from_numpy(joined("log_probs")),
        masks=torch.from_numpy(masks),
        forced=torch.from_numpy(forced_steps(spaces.action, actions, masks)),
        rewards=torch.from_numpy(joined("rewards")),
        version=torch.from_numpy(joined("policy_version")),
        grid_index=torch.from_numpy(np.repeat(np.arange(len(lengths)) * longest, lengths) + within),
        terminated=torch.tensor([e.terminated for e in episodes]),
        bootstrap_value=torch.tensor([e.bootstrap_value for e in episodes], dtype=torch.float32),
        seed_index=torch.tensor([seeds[e.task_id, e.seed] for e in episodes]),
        episode_lengths=lengths,
        chunk_lengths=np.minimum(length, lengths[episode] - start),
        burn_in=before,
        state=PolicyState(*(states(name) for name in PolicyState._fields)),
    )


def _chunk_starts(lengths: Counts, chunk_length: int) -> tuple[Counts, Counts]:
    """Return `[R]` each: the episode of a chunk, and its first step in that episode."""
    chunks = -(-lengths // chunk_length)
    episode = np.repeat(np.arange(len(lengths)), chunks)
    return episode, (np.arange(len(episode)) - np.repeat(chunks.cumsum() - chunks, chunks)) * chunk_length
