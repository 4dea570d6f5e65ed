"""The learner's intake: takes, decodes and validates episodes and drops stale ones; every episode is accounted for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from actors.codec import decode_episode
from actors.transport.base import Delivery, DropReason, EpisodeHeader
from actors.transport.redis import Transport
from actors.types.episode import Episode, InvalidEpisode
from learner.schema import EpisodeSchema

WAITING_BATCHES = 0.5
"""Batches that the queue holds. Actors that are faster than the learner wait, and act by newer weights afterwards; what
this saves is in docs/benchmarks.md, Time to solve."""
MAX_ATTEMPTS = 3  # crashes while one episode is probed, before it is set aside


@dataclass(frozen=True)
class TakenEpisode:
    entry_id: str
    episode: Episode
    head_version: int = -1  # newest published weights when it was put


def lag_split(taken: Sequence[TakenEpisode], version: int) -> dict[str, float]:
    """Split the lag of the oldest steps behind `version` into versions published while the episodes were acted and
    shipped (in flight) and versions published while they waited in the queue."""
    lags = np.array([version - t.episode.oldest_version for t in taken])
    in_queue = np.array([max(0, version - max(t.head_version, t.episode.oldest_version)) for t in taken])
    return {
        "policy_lag_mean": float(lags.mean()),
        "policy_lag_max": float(lags.max()),
        "policy_lag_in_flight": float((lags - in_queue).mean()),
        "policy_lag_in_queue": float(in_queue.mean()),
    }


class Intake:
    """Takes valid and fresh episodes from the queue. `probe` runs one forward pass over an episode. `dropped_stale` and
    `dead_lettered` are counted since construction."""

    def __init__(
        self,
        consumer: Transport,
        schema: EpisodeSchema,
        max_policy_lag: int,
        probe: Callable[[Episode], object] = lambda episode: None,
    ) -> None:
        self.consumer, self.schema, self.max_policy_lag = consumer, schema, max_policy_lag
        self.probe = probe
        self.dropped_stale = 0
        self.dead_lettered = 0
        self.starved_s = 0.0  # waiting for a queue that held fewer episodes than were wanted
        self.notes: list[str] = []  # for the user; one line per episode that was set aside
        self._recovered: list[TakenEpisode] = []
        self._consumed: Collection[str] = ()
        self._room = 0  # episodes that the queue holds as far as is known

    def recover(self, consumed: Collection[str]) -> None:
        """After a crash, acknowledge the episodes that the checkpoint has consumed, and probe the other pending entries
        one at a time. Each attempt is counted before the probe, which identifies an episode that crashes the process.
        """
        self._consumed, self._room = frozenset(consumed), 0
        self._recovered = []
        for delivery in self._unless_consumed(self.consumer.pending()):
            if self.consumer.begin_attempt(delivery.entry_id) > MAX_ATTEMPTS:
                reason = f"crashed the learner {MAX_ATTEMPTS} times"
                self._set_aside(delivery.entry_id, delivery.header.episode_id, reason)
                continue
            taken = self._decode(delivery)
            if taken is not None:
                self.probe(taken.episode)
                self.consumer.end_attempt(delivery.entry_id)
                self._recovered.append(taken)

    def collect(self, count: int, version: int, stop: Callable[[], bool], steps: int = 0) -> list[TakenEpisode] | None:
        """Take at least `count` episodes and `steps` steps that are fresh enough for `version`. Returns None if `stop`
        becomes true first."""
        batch: list[TakenEpisode] = []
        have = 0
        while len(batch) < count or have < steps:
            if stop():
                return None
            missing = (steps - have) * len(batch) // max(1, have)  # by the lengths so far
            wanted = max(1, count - len(batch), missing)
            some, self._recovered = self._recovered[:wanted], self._recovered[wanted:]
            if not some:
                began = time.monotonic()
                deliveries = self.consumer.take(wanted, timeout_s=0.5)
                self.starved_s += time.monotonic() - began if len(deliveries) < wanted else 0.0
                some = [taken for taken in map(self._decode, self._unless_consumed(deliveries)) if taken is not None]
            for taken in some:
                if self._is_fresh(taken, version):
                    batch.append(taken)
                    have += len(taken.episode)
        self._make_room(len(batch))
        return batch

    def _make_room(self, episodes: int) -> None:
        """Let the queue hold `WAITING_BATCHES` of this many episodes, and a quarter more, so that it seldom changes."""
        least = WAITING_BATCHES * episodes
        if not self._room / 2 <= least <= self._room:
            self._room = ceil(least * 5 / 4)
            self.consumer.resize(self._room)

    def _unless_consumed(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries that the checkpoint has not consumed, and acknowledge the others. A store that forgot
        its last second can offer some again."""
        self.consumer.ack([d.entry_id for d in deliveries if d.header.episode_id in self._consumed])
        return [d for d in deliveries if d.header.episode_id not in self._consumed]

    def _decode(self, delivery: Delivery) -> TakenEpisode | None:
        try:
            episode = decode_episode(delivery.payload, self.consumer.config.max_episode_bytes)
            # The queue orders and fences episodes by their headers; checkpoints name them by their payloads.
            for name, value in vars(EpisodeHeader.from_episode(episode)).items():
                if value != (given := getattr(delivery.header, name)):
                    raise InvalidEpisode(
                        f"its payload's {name} is {value!r}, its header's is {given!r}: an actor must make the header "
                        "from the episode that it sends"
                    )
            self.schema.check(episode)
        except InvalidEpisode as error:
            self._set_aside(delivery.entry_id, delivery.header.episode_id, str(error))
            return None
        return TakenEpisode(delivery.entry_id, episode, delivery.head_version)

    def _is_fresh(self, taken: TakenEpisode, version: int) -> bool:
        """Whether the oldest step is recent enough. Stale episodes are dropped and counted. An episode of weights that
        do not exist yet would stay fresh forever, and is set aside."""
        newest = int(taken.episode.policy_version.max())
        if newest > version:
            reason = f"it was acted by weights {newest}, but the newest are {version}"
            self._set_aside(taken.entry_id, taken.episode.episode_id, reason)
            return False
        if version - taken.episode.oldest_version <= self.max_policy_lag:
            return True
        self.dropped_stale += len(self.consumer.drop([taken.entry_id], DropReason.STALE))
        return False

    def _set_aside(self, entry_id: str, episode_id: str, reason: str) -> None:
        if self.consumer.dead_letter(entry_id, reason):
            self.dead_lettered += 1
            self.notes.append(
                f"episode {episode_id} was set aside as a dead letter ({reason}); training continues: "
                "check that its actor runs the same version and configuration as this learner"
            )
