"""Demonstrations from files: episodes of training runs or of other policies, for pretraining by imitation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from actors.errors import UserError
from actors.policy.state import StateSizes
from actors.rollout.episode_files import find_episodes, read_episode
from actors.types.episode import Episode, InvalidEpisode, RecurrentState
from actors.types.spaces import Spaces
from deploy.config.schema import Config
from learner.schema import EpisodeSchema


class DemonstrationFiles(NamedTuple):
    """Episodes that can be imitated, and a line for each file that cannot."""

    episodes: list[Episode]
    refused: list[str]


def read_demonstrations(config: Config, spaces: Spaces) -> DemonstrationFiles:
    """Read `imitation.files`. Raises `UserError` if a path does not exist, or if too few demonstrations are left."""
    found = DemonstrationFiles([], [])
    known: set[str] = set()
    schema = EpisodeSchema(spaces, StateSizes.from_config(config.policy), config.learner.state_stride)
    for path in find_episodes(map(Path, config.imitation.files)):
        try:
            episode = read_episode(path)
            if not episode.terminated:
                raise InvalidEpisode("it was cut: a demonstration is a whole episode")
            if episode.episode_id in known:
                raise InvalidEpisode(f"another file holds the same episode, {episode.episode_id}")
            (demonstration,) = as_demonstrations([episode], config)
            schema.check(demonstration)
        except InvalidEpisode as error:
            found.refused.append(f"{path}: refused: {error}")
            continue
        known.add(episode.episode_id)
        found.episodes.append(demonstration)
    least = 2 if config.imitation.files and not config.imitation.episodes else 0
    if len(found.episodes) < least:
        reason = f"; {found.refused[0]}" if found.refused else ""
        raise UserError(
            f"imitation.files has {len(found.episodes)} usable episodes, and imitation needs at least {least}{reason}"
        )
    return found


def as_demonstrations(episodes: Sequence[Episode], config: Config) -> list[Episode]:
    """Return the episodes with zeros for the recurrent states, which are those of the policies that acted: imitation
    computes its own."""
    sizes, stride = StateSizes.from_config(config.policy), config.learner.state_stride

    def zeros(count: int) -> RecurrentState:
        return RecurrentState(*(np.zeros((n, count, width), dtype=np.float32) for n, width in sizes))

    return [
        replace(e, initial_state=zeros(1), states=zeros(-(-len(e) // stride)), state_stride=stride) for e in episodes
    ]
