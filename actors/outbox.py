"""`Outbox`: an actor's unsent episodes, and every one of them accounted for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actors.codec import encode_episode
from actors.episode import Episode
from actors.transport.base import EpisodeHeader, Producer, PutStatus


@dataclass
class Accounts:
    """Of this incarnation: produced = accepted + refused_fenced + dropped_backpressure + unsent."""

    produced: int = 0
    accepted: int = 0
    refused_fenced: int = 0
    dropped_backpressure: int = 0


class Outbox:
    """Ships in order. A busy queue is waited for; only a full outbox drops its oldest episode, and counts it."""

    def __init__(self, producer: Producer, actor: str, incarnation: int, capacity: int) -> None:
        self.producer, self.actor, self.incarnation, self.capacity = producer, actor, incarnation, capacity
        self.accounts = Accounts()
        self._unsent: deque[tuple[EpisodeHeader, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, episode: Episode) -> None:
        episode.validate()
        if len(self._unsent) == self.capacity:
            self._unsent.popleft()
            self.accounts.dropped_backpressure += 1
        self._unsent.append((EpisodeHeader.of(episode), encode_episode(episode)))
        self.accounts.produced += 1

    def ship(self, patience_s: float, sleep: Callable[[float], None] = time.sleep) -> float:
        """Put what is unsent, waiting at most `patience_s` in all for a busy queue; returns seconds waited."""
        waited_s = 0.0
        while self._unsent:
            reply = self.producer.put(*self._unsent[0])
            if reply.status is PutStatus.BUSY:
                if waited_s >= patience_s:
                    break
                sleep(reply.retry_s)
                waited_s += reply.retry_s
                continue
            self._unsent.popleft()
            fenced = reply.status is PutStatus.FENCED
            self.accounts.refused_fenced += fenced
            self.accounts.accepted += not fenced
        self.report()
        return waited_s

    def report(self) -> None:
        """Tell the store this incarnation's totals."""
        a = self.accounts
        self.producer.report(
            self.actor, self.incarnation, a.produced, a.dropped_backpressure, a.refused_fenced, len(self._unsent)
        )
