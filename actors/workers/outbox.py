"""`Outbox`: an actor's unsent episodes, and every one of them accounted for."""

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

AT_ONCE = 16  # episodes offered in one round trip,
AT_ONCE_BYTES = 4 * 2**20  # or as many as are of this size together


@dataclass
class Accounts:
    """Of this incarnation: produced = accepted + refused_fenced + dropped_backpressure + unsent."""

    produced: int = 0
    accepted: int = 0
    refused_fenced: int = 0
    dropped_backpressure: int = 0


class Outbox:
    """Ships in order. A busy queue is waited for; only a full outbox drops its oldest episode, and counts it. `health`
    is what the store is told of this actor, seconds since its start among it."""

    def __init__(self, producer: Producer, actor: str, incarnation: int, capacity: int) -> None:
        self.producer, self.actor, self.incarnation, self.capacity = producer, actor, incarnation, capacity
        self.accounts = Accounts()
        self.health: dict[str, float] = {"elapsed_s": 0.0, "waited_s": 0.0, "put_s": 0.0}
        self._began = time.monotonic()
        self._unsent: deque[tuple[EpisodeHeader, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, episode: Episode) -> None:
        payload = encode_episode(episode)  # refuses an invalid episode before another is dropped for it
        if len(self._unsent) == self.capacity:
            self._unsent.popleft()
            self.accounts.dropped_backpressure += 1
        self._unsent.append((EpisodeHeader.of(episode), payload))
        self.accounts.produced += 1

    def ship(self, patience_s: float, sleep: Callable[[float], None] = time.sleep) -> float:
        """Put what is unsent, waiting at most `patience_s` in all for a busy queue; returns seconds waited."""
        waited_s = 0.0
        while self._unsent:
            began = time.monotonic()
            replies = self._offer()
            self.health["put_s"] += time.monotonic() - began
            for reply in replies:
                self._note(reply.status)
            if replies[-1].status is PutStatus.BUSY:
                if waited_s >= patience_s:
                    break
                sleep(replies[-1].retry_s)
                waited_s += replies[-1].retry_s
        self.health["waited_s"] += waited_s
        self.report()
        return waited_s

    def report(self) -> None:
        """Tell the store this incarnation's totals."""
        a = self.accounts
        self.health["elapsed_s"] = time.monotonic() - self._began
        totals = ActorLedger(a.produced, a.accepted, a.refused_fenced, a.dropped_backpressure, len(self._unsent))
        self.producer.report(self.actor, self.incarnation, totals, self.health)

    def _offer(self) -> list[PutReply]:
        """Replies to the oldest few."""
        some: list[tuple[EpisodeHeader, bytes]] = []
        size = 0
        for header, payload in islice(self._unsent, AT_ONCE):
            size += len(payload)
            if some and size > AT_ONCE_BYTES:
                break
            some.append((header, payload))
        return self.producer.put_all(some)

    def _note(self, status: PutStatus) -> None:
        if status is PutStatus.BUSY:
            return
        self._unsent.popleft()
        fenced = status is PutStatus.FENCED
        self.accounts.refused_fenced += fenced
        self.accounts.accepted += not fenced
