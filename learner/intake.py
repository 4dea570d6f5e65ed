"""The learner's intake: take, decode, validate, and drop what is too old, with every episode accounted for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors.codec import decode_episode
from actors.episode import Episode, InvalidEpisode
from actors.spaces import Spaces
from actors.transport.base import Consumer, Delivery, DropReason
from learner.batching import StateFormat, check_episode

MAX_ATTEMPTS = 3  # crashes with one episode in hand before it is set aside


@dataclass(frozen=True)
class Taken:
    entry_id: str
    episode: Episode


class Intake:
    """Counts `dropped_stale` and `dead_lettered` since it was made."""

    def __init__(
        self, consumer: Consumer, spaces: Spaces, max_policy_lag: int, states: StateFormat | None = None
    ) -> None:
        self.consumer, self.spaces, self.max_policy_lag, self.states = consumer, spaces, max_policy_lag, states
        self.dropped_stale = 0
        self.dead_lettered = 0
        self.notes: list[str] = []  # what a person should know; one line per episode that was set aside
        self._recovered: list[Delivery] = []

    def recover(self, consumed: tuple[str, ...]) -> None:
        """After a restart: settle what the checkpoint holds, and try the other pending entries again, one at a time."""
        self._recovered = []
        pending = self.consumer.pending()
        held = [d for d in pending if d.header.episode_id in consumed]
        self.consumer.ack([d.entry_id for d in held])
        for delivery in pending:
            if delivery in held:
                continue
            attempts = self.consumer.begin_attempt(delivery.entry_id)
            if attempts > MAX_ATTEMPTS:
                self._set_aside(delivery, f"crashed the learner {MAX_ATTEMPTS} times")
            elif attempts > 0:
                self._recovered.append(delivery)

    def collect(self, count: int, version: int, stop: Callable[[], bool], steps: int = 0) -> list[Taken] | None:
        """At least `count` episodes and `steps` steps, fresh enough for `version`; None when told to stop before."""
        batch: list[Taken] = []
        have = 0
        while len(batch) < count or have < steps:
            if stop():
                return None
            missing = (steps - have) * len(batch) // max(1, have)  # by the lengths so far
            wanted = max(1, count - len(batch), missing)
            deliveries, self._recovered = self._recovered[:wanted], self._recovered[wanted:]
            deliveries = deliveries or self.consumer.take(wanted, timeout_s=0.5)
            for delivery in deliveries:
                episode = self._accept(delivery, version)
                if episode is not None:
                    batch.append(Taken(delivery.entry_id, episode))
                    have += len(episode)
        return batch

    def _accept(self, delivery: Delivery, version: int) -> Episode | None:
        try:
            episode = decode_episode(delivery.payload)
            check_episode(episode, self.spaces, self.states)
        except InvalidEpisode as error:
            self._set_aside(delivery, str(error))
            return None
        if version - episode.oldest_version > self.max_policy_lag:
            self.dropped_stale += len(self.consumer.drop([delivery.entry_id], DropReason.STALE))
            return None
        return episode

    def _set_aside(self, delivery: Delivery, reason: str) -> None:
        if self.consumer.dead_letter(delivery.entry_id, reason):
            self.dead_lettered += 1
            self.notes.append(
                f"episode {delivery.header.episode_id} was set aside as a dead letter ({reason}); training goes on: "
                "look for what its actor runs that this learner does not"
            )
