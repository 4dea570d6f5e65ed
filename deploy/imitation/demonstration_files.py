"""Demonstrations from files: episodes of other runs or policies, for pretraining by imitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from actors.errors import UserError
from actors.policy.state import StateSizes
from actors.rollout.episode_files import find_episodes, read_episode
from actors.types.episode import Episode, InvalidEpisode, RecurrentState
from actors.types.spaces import Spaces
from deploy.config.schema import Config
from learner.schema import EpisodeSchema


def read_demonstrations(config: Config, spaces: Spaces) -> tuple[list[Episode], list[str]]:
    """Read `imitation.files`. Returns the episodes that can be imitated, and a line for each file that cannot. Raises
    `UserError` if a path does not exist, or if too few demonstrations are left."""
    found, refused = dict[str, Episode](), list[str]()
    schema = EpisodeSchema(spaces, StateSizes.from_config(config.policy), config.learner.state_stride)
    for path in find_episodes(map(Path, config.imitation.files)):
        try:
            episode = read_episode(path)
            if not episode.terminated:
                raise InvalidEpisode("it was cut: a demonstration is a whole episode")
            if episode.episode_id in found:
                raise InvalidEpisode(f"another file holds the same episode, {episode.episode_id}")
            (demonstration,) = as_demonstrations([episode], config)
            schema.check(demonstration)
            found[episode.episode_id] = demonstration
        except InvalidEpisode as error:
            refused.append(f"{path}: refused: {error}")
    least = 2 if config.imitation.files and not config.imitation.episodes else 0
    if len(found) < least:
        reason = f"; {refused[0]}" if refused else ""
        raise UserError(
            f"imitation.files has {len(found)} usable episodes, and imitation needs at least {least}{reason}"
        )
    return list(found.values()), refused


def as_demonstrations(episodes: Sequence[Episode], config: Config) -> list[Episode]:
    """Return the episodes with zeros for the recurrent states, which are those of the policies that acted: imitation
    computes its own."""
    sizes, stride = StateSizes.from_config(config.policy), config.learner.state_stride

    def zeros(count: int) -> RecurrentState:
        return RecurrentState(*(np.zeros((n, count, width), dtype=np.float32) for n, width in sizes))

    return [
        replace(e, initial_state=zeros(1), states=zeros(-(-len(e) // stride)), state_stride=stride) for e in episodes
    ]
