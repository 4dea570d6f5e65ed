"""`Outbox`: an actor's buffer of unsent episodes, which counts what becomes of every episode."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from actors.codec import encode_episode
from actors.transport.base import EpisodeHeader, Producer, PutReply, PutStatus
from actors.transport.ledger import ActorLedger
from actors.types.episode import Episode

BATCH_EPISODES = 16  # most episodes per round trip,
BATCH_BYTES = 4 * 2**20  # as long as they are not larger than this together


@dataclass
class EpisodeCounts:
    """Totals of this incarnation: produced = accepted + refused_fenced + dropped_backpressure + unsent."""

    produced: int = 0
    accepted: int = 0
    refused_fenced: int = 0
    dropped_backpressure: int = 0


class Outbox:
    """Ships episodes in order and waits while the queue is busy.

    Only when the outbox is full is its oldest episode dropped, and counted. `health` holds the figures that are
    reported to the store with the counts: seconds since the start, seconds spent waiting, and so on.
    """

    def __init__(self, producer: Producer, actor: str, incarnation: int, capacity: int) -> None:
        self.producer, self.actor, self.incarnation, self.capacity = producer, actor, incarnation, capacity
        self.counts = EpisodeCounts()
        self.health: dict[str, float] = {"elapsed_s": 0.0, "waited_s": 0.0, "put_s": 0.0}
        self._started_s = time.monotonic()
        self._unsent: deque[tuple[EpisodeHeader, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, episode: Episode) -> None:
        """Append an episode; a full outbox drops its oldest. Raises `InvalidEpisode`."""
        payload = encode_episode(episode)  # refuses an invalid episode before another is dropped for it
        if len(self._unsent) == self.capacity:
            self._unsent.popleft()
            self.counts.dropped_backpressure += 1
        self._unsent.append((EpisodeHeader.from_episode(episode), payload))
        self.counts.produced += 1

    def ship(self, max_wait_s: float, sleep: Callable[[float], None] = time.sleep) -> float:
        """Put all unsent episodes, waiting at most `max_wait_s` in total for a busy queue. Returns seconds waited."""
        waited_s = 0.0
        while self._unsent:
            began = time.monotonic()
            replies = self._put_batch()
            self.health["put_s"] += time.monotonic() - began
            for reply in replies:
                self._count(reply.status)
            if replies[-1].status is PutStatus.BUSY:
                if waited_s >= max_wait_s:
                    break
                sleep(replies[-1].retry_s)
                waited_s += replies[-1].retry_s
        self.health["waited_s"] += waited_s
        self.report()
        return waited_s

    def report(self) -> None:
        """Report this incarnation's totals to the store."""
        c = self.counts
        self.health["elapsed_s"] = time.monotonic() - self._started_s
        totals = ActorLedger(c.produced, c.accepted, c.refused_fenced, c.dropped_backpressure, len(self._unsent))
        self.producer.report(self.actor, self.incarnation, totals, self.health)

    def _put_batch(self) -> list[PutReply]:
        """Put the oldest unsent episodes in one round trip and return their replies."""
        batch: list[tuple[EpisodeHeader, bytes]] = []
        size = 0
        for header, payload in islice(self._unsent, BATCH_EPISODES):
            size += len(payload)
            if batch and size > BATCH_BYTES:
                break
            batch.append((header, payload))
        return self.producer.put_all(batch)

    def _count(self, status: PutStatus) -> None:
        if status is PutStatus.BUSY:
            return
        self._unsent.popleft()
        fenced = status is PutStatus.FENCED
        self.counts.refused_fenced += fenced
        self.counts.accepted += not fenced
