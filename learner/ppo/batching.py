"""`Batch`: episodes padded to `[E, T, ...]` with a `valid` mask, as the learner sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.policy.state import PolicyState, StateSizes
from actors.types.actions import forced_steps
from actors.types.episode import Episode, InvalidEpisode
from actors.types.spaces import Spaces


class Batch(NamedTuple):
    """E episodes of at most T steps, right-padded; what padding holds is never read."""

    obs: Tensor  # [E, T, D]
    blueprint_indices: Tensor  # [E, T, S]
    actions: Tensor  # [E, T, H]
    log_probs: Tensor  # [E, T, H] of the behaviour policy
    masks: Tensor  # [E, T, A] in force
    forced: Tensor  # [E, T] bool
    rewards: Tensor  # [E, T]
    version: Tensor  # [E, T]
    valid: Tensor  # [E, T] bool
    terminated: Tensor  # [E] bool
    bootstrap_value: Tensor  # [E] denormalised
    states: PolicyState  # stored ones, each [n, E, ceil(T / stride), width]

    def to(self, device: torch.device) -> Batch:
        fields = {name: t.to(device) for name, t in self._asdict().items() if name != "states"}
        return self._replace(states=PolicyState(*(t.to(device) for t in self.states)), **fields)


class StateFormat(NamedTuple):
    """How the learner's own policy stores its recurrent state."""

    sizes: StateSizes
    stride: int  # steps between stored states


def check_episode(episode: Episode, spaces: Spaces, states: StateFormat | None = None) -> None:
    """Raise `InvalidEpisode` where an episode does not fit the spaces, chose what its own masks forbid, or (with
    `states`) holds recurrent states that the policy could not have stored: one batch must be able to hold it."""
    if episode.spaces_hash != spaces.hash:
        raise InvalidEpisode(
            f"episode {episode.episode_id}: spaces {episode.spaces_hash}, the learner has {spaces.hash}"
        )
    spec = spaces.action
    widths = {
        "obs": spaces.obs_size,
        "blueprint_indices": spaces.slots,
        "actions": len(spec.heads),
        "masks": spec.flat_size,
    }
    for name, width in widths.items():
        if getattr(episode, name).shape[1] != width:
            raise InvalidEpisode(
                f"episode {episode.episode_id}: {name} is {getattr(episode, name).shape[1]} wide, not {width}"
            )
    if (episode.blueprint_indices < -1).any() or (episode.blueprint_indices >= spaces.num_blueprints).any():
        raise InvalidEpisode(f"episode {episode.episode_id}: a blueprint index is out of range")
    if (episode.actions >= np.array(spec.sizes)).any():
        raise InvalidEpisode(f"episode {episode.episode_id}: an action is out of range")
    chosen = episode.masks[np.arange(len(episode))[:, None], episode.actions + np.array(spec.offsets)]
    if not chosen.all():
        raise InvalidEpisode(f"episode {episode.episode_id}: a chosen action is masked")
    if states is None:
        return
    if episode.state_stride != states.stride:
        raise InvalidEpisode(
            f"episode {episode.episode_id}: states every {episode.state_stride} steps, the learner has {states.stride}"
        )
    for name in ("initial_state", "states"):
        for part, array, (n, width) in zip(
            StateSizes._fields, getattr(episode, name).arrays, states.sizes, strict=True
        ):
            if array.shape[::2] != (n, width) or (name == "initial_state" and array.shape[1] != 1):
                raise InvalidEpisode(
                    f"episode {episode.episode_id}: {name}.{part} is {list(array.shape)}, "
                    f"the learner has {n} of {width}"
                )


def make_batch(episodes: Sequence[Episode], spaces: Spaces) -> Batch:
    """Pad episodes that `check_episode` accepted; their state strides must agree."""
    lengths = [len(e) for e in episodes]
    strides = {e.state_stride for e in episodes}
    if len(strides) > 1:
        raise InvalidEpisode(f"episodes of one batch store states at different strides: {sorted(strides)}")
    steps = max(lengths)

    def padded(name: str) -> Tensor:
        rows = [getattr(e, name) for e in episodes]
        out = np.zeros((len(rows), steps, *rows[0].shape[1:]), dtype=rows[0].dtype)
        for target, row in zip(out, rows, strict=True):
            target[: len(row)] = row
        return torch.from_numpy(out)

    def stored(name: str) -> Tensor:
        parts = [getattr(e.states, name) for e in episodes]  # [k, n, width]
        out = np.zeros(
            (parts[0].shape[0], len(parts), -(-steps // episodes[0].state_stride), parts[0].shape[2]), np.float32
        )
        for i, part in enumerate(parts):
            out[:, i, : part.shape[1]] = part
        return torch.from_numpy(out)

    actions, masks = padded("actions"), padded("masks")
    return Batch(
        obs=padded("obs"),
        blueprint_indices=padded("blueprint_indices"),
        actions=actions,
        log_probs=padded("log_probs"),
        masks=masks,
        forced=torch.from_numpy(forced_steps(spaces.action, actions.numpy(), masks.numpy())),
        rewards=padded("rewards"),
        version=padded("policy_version"),
        valid=torch.arange(steps)[None, :] < torch.tensor(lengths)[:, None],
        terminated=torch.tensor([e.terminated for e in episodes]),
        bootstrap_value=torch.tensor([e.bootstrap_value for e in episodes], dtype=torch.float32),
        states=PolicyState(*(stored(name) for name in PolicyState._fields)),
    )
