"""`EpisodeSchema`: the form that an episode must have for a learner to train on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from actors.policy.state import StateSizes
from actors.types.episode import Episode, InvalidEpisode
from actors.types.spaces import Spaces

MIN_LOG_PROB = -100.0  # of a choice: no policy draws one whose probability is e^-100
LARGEST_STATE = 1e6  # a cell grows by at most 1 a step, and products of such states are finite


@dataclass(frozen=True)
class EpisodeSchema:
    """The learner's spaces and the layout of its policy's recurrent state. The codec has already checked that an
    episode is consistent in itself (`Episode.validate`)."""

    spaces: Spaces
    state_sizes: StateSizes
    state_stride: int  # steps between stored states

    def check(self, episode: Episode) -> None:
        """Raise `InvalidEpisode` if an episode does not match the spaces, chose an action that its own masks forbid, or
        contains log-probs or recurrent states that the policy could not have stored."""
        if fault := next(self._faults(episode), ""):
            raise InvalidEpisode(f"episode {episode.episode_id}: {fault}")

    def _faults(self, episode: Episode) -> Iterator[str]:
        """Find faults one by one; what is checked later relies on what was checked before."""
        spaces, spec = self.spaces, self.spaces.action
        if episode.spaces_hash != spaces.hash:
            yield f"its spaces are {episode.spaces_hash}, but the learner's are {spaces.hash}"
        widths = {"obs": spaces.obs_size, "blueprint_indices": spaces.slots, "actions": len(spec.heads)}
        widths["masks"] = spec.flat_size
        for field, width in widths.items():
            if (found := getattr(episode, field).shape[1]) != width:
                yield f"{field} has width {found}, expected {width}"
        carried = [] if episode.burn_in is None else [episode.burn_in.blueprint_indices]
        for indices in (episode.blueprint_indices, *carried):
            if (indices < -1).any() or (indices >= spaces.num_blueprints).any():
                yield "a blueprint index is out of range"
        if (episode.actions >= np.array(spec.limits)).any():
            yield "an action is out of range"
        choices = np.where([h.continuous for h in spec.heads], 0, episode.actions)
        if not episode.masks[np.arange(len(episode))[:, None], choices + np.array(spec.offsets)].all():
            yield "a chosen action is masked"
        if (episode.log_probs[:, [not h.continuous for h in spec.heads]] < MIN_LOG_PROB).any():
            yield f"a log-prob is below {MIN_LOG_PROB:g}: no policy makes such a choice"
        if episode.state_stride != self.state_stride:
            yield f"its states are {episode.state_stride} steps apart, the learner expects {self.state_stride}"
        for field in ("initial_state", "states"):
            arrays = getattr(episode, field)
            for part, array, (n, width) in zip(StateSizes._fields, arrays, self.state_sizes, strict=True):
                if array.shape[::2] != (n, width) or (field == "initial_state" and array.shape[1] != 1):
                    yield f"{field}.{part} has shape {list(array.shape)}, expected {n} states of width {width}"
                if (abs(array) > LARGEST_STATE).any():
                    yield f"{field}.{part} has numbers beyond {LARGEST_STATE:g}"
