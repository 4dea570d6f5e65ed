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

    obs: Tensor  # [N + P, D] of the batch's steps, then of P steps before segments, which are only replayed
    blueprint_indices: Tensor  # [N + P, S]
    actions: Tensor  # [N, H]
    log_probs: Tensor  # [N, H] of the behaviour policy
    masks: Tensor  # [N, A] in force
    forced: Tensor  # [N] bool, steps with one legal joint action
    rewards: Tensor  # [N]
    version: Tensor  # [N] of the weights that chose each step
    first_version: Tensor  # [E] of the weights that chose the first step of each episode or of its burn-in
    grid_index: Tensor  # [N] of each step in the flattened [E, T] grid that `to_rows` pads to
    terminated: Tensor  # [E] bool
    bootstrap_value: Tensor  # [E] denormalized
    seed_index: Tensor  # [E] equal for episodes with the same task and seed
    episode_lengths: Counts  # [E] steps
    chunk_lengths: Counts  # [R] steps
    replayed: Counts  # [R, 2, 2] burn-in of each chunk: (first, number) of its steps before the segment, and in it
    state: PolicyState  # before each chunk's burn-in, each [n, R, width]

    @property
    def size(self) -> int:
        """N."""
        return self.rewards.shape[0]

    @property
    def first_steps(self) -> Counts:
        """Return `[R]`, the index of each chunk's first step."""
        return _starts(self.chunk_lengths)

    @property
    def burn_in(self) -> Counts:
        """Return `[R]`, the number of steps replayed before each chunk; other chunks or batches count them."""
        return np.asarray(self.replayed[:, :, 1].sum(1), np.int64)

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
        none = np.zeros((len(self.episode_lengths), 2, 2), np.int64)
        return self._replace(chunk_lengths=self.episode_lengths, replayed=none, state=state)


def make_batch(episodes: Sequence[Episode], spaces: Spaces, chunk_length: int | None = None, burn_in: int = 0) -> Batch:
    """Concatenate episodes, and cut each into chunks of `chunk_length` steps (None: whole episodes). Chunks that start
    in mid-episode have `burn_in` steps before them, more if no state is stored there, and fewer if there are not so
    many. Raises `ValueError` if there are no episodes or no states are stored at the first steps of chunks, and
    `InvalidEpisode` if the episodes' strides differ."""
    if not episodes:
        raise ValueError("a batch without episodes: give at least one")
    strides = {e.state_stride for e in episodes}
    if len(strides) > 1:
        raise InvalidEpisode(f"episodes of one batch store states at different strides: {sorted(strides)}")
    lengths, stride = np.array([len(e) for e in episodes]), strides.pop()
    longest = int(lengths.max())
    length = longest if chunk_length is None else chunk_length
    for name, steps in (("chunks", length), ("burn-in", burn_in)):
        if steps % stride and length < longest:
            raise ValueError(f"{name} of {steps} steps: states are stored every {stride} steps")

    chunks = -(-lengths // length)  # [E]
    episode = np.repeat(np.arange(len(lengths)), chunks)  # [R] of each chunk
    start = (np.arange(len(episode)) - np.repeat(_starts(chunks), chunks)) * length  # [R] its first step, there
    carried = np.array([0 if e.burn_in is None else len(e.burn_in) for e in episodes])
    used = np.minimum(carried, burn_in + carried % stride)  # back to a stored state
    place = carried[episode] + start
    before = np.minimum(place, burn_in + place % stride)
    stored = -(-(carried + lengths) // stride)
    state_index = _starts(stored)[episode] + (place - before) // stride
    earlier = np.maximum(0, before - start)
    first = _starts(lengths)[episode] + start
    after_earlier = lengths.sum() + used.cumsum()[episode]
    replayed = np.stack([after_earlier - earlier, earlier, first - (before - earlier), before - earlier], 1)

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(e, name) for e in episodes])

    def seen(name: str) -> Tensor:
        pairs = zip(episodes, used, strict=True)
        earlier = [getattr(e.burn_in, name)[-n:] for e, n in pairs if e.burn_in is not None and n]
        return torch.from_numpy(np.concatenate([*(getattr(e, name) for e in episodes), *earlier]))

    def states(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(e.states, name) for e in episodes], 1)[:, state_index])

    actions, masks = joined("actions"), joined("masks")
    seeds = {key: k for k, key in enumerate(dict.fromkeys((e.task_id, e.seed) for e in episodes))}
    within = np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)
    oldest = [e.policy_version[0] if e.burn_in is None else e.burn_in.version for e in episodes]
    return Batch(
        obs=seen("obs"),
        blueprint_indices=seen("blueprint_indices"),
        actions=torch.from_numpy(actions),
        log_probs=torch.from_numpy(joined("log_probs")),
        masks=torch.from_numpy(masks),
        forced=torch.from_numpy(forced_steps(spaces.action, actions, masks)),
        rewards=torch.from_numpy(joined("rewards")),
        version=torch.from_numpy(joined("policy_version")),
        first_version=torch.tensor(oldest),
        grid_index=torch.from_numpy(np.repeat(np.arange(len(lengths)) * longest, lengths) + within),
        terminated=torch.tensor([e.terminated for e in episodes]),
        bootstrap_value=torch.tensor([e.bootstrap_value for e in episodes], dtype=torch.float32),
        seed_index=torch.tensor([seeds[e.task_id, e.seed] for e in episodes]),
        episode_lengths=lengths,
        chunk_lengths=np.minimum(length, lengths[episode] - start),
        replayed=replayed.reshape(-1, 2, 2),
        state=PolicyState(*(states(name) for name in PolicyState._fields)),
    )


def _starts(lengths: Counts) -> Counts:
    """Return where each of some adjacent ranges starts."""
    return np.asarray(lengths.cumsum() - lengths, np.int64)
