"""`Outbox`: an actor's buffer of unsent episodes, which counts what becomes of every episode."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from actors.codec import encode_episode
from actors.transport.base import EpisodeHeader, Miscounted, PutReply, PutStatus
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport
from actors.types.episode import Episode

LONGEST_WAIT_S = 0.5  # for room in the queue, before it is tried again
REPORT_S = 0.5  # between two reports to the store
BATCH_EPISODES = 64  # most episodes per round trip,
BATCH_BYTES = 4 * 2**20  # as long as they are not larger than this together


class Outbox:
    """Numbers episodes in the order in which they come, ships them in this order, and waits while the queue is busy.

    Only when the outbox is full is its oldest episode dropped, and counted. `health` holds the figures that are
    reported to the store with the counts: seconds since the start, seconds spent waiting, and so on.
    """

    def __init__(self, producer: Transport, run: str, actor: str, incarnation: int, capacity_steps: int) -> None:
        self.producer, self.run, self.actor, self.incarnation = producer, run, actor, incarnation
        self.capacity_steps = capacity_steps
        self.counts = ActorLedger()  # of this incarnation
        self.health: dict[str, float] = {"elapsed_s": 0.0, "waited_s": 0.0, "put_s": 0.0}
        self._started_s = time.monotonic()
        self._reported_s = -REPORT_S
        self._unsent: deque[tuple[EpisodeHeader, bytes, int]] = deque()  # with their steps
        self.unsent_steps = 0
        # Connections opened so far, and the id of the store's memory: at the last put, and at the last report.
        self._last_put = self._last_report = (0, 0)

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, episode: Episode) -> None:
        """Append an episode, which gets the next number; a full outbox drops its oldest. Raises `InvalidEpisode`."""
        name = f"{self.run}/{self.actor}/{self.incarnation}/{self.counts.produced + 1}"
        episode = replace(episode, episode_id=name)
        payload = encode_episode(episode)  # refuses an invalid episode before another is dropped for it
        while self._unsent and self.unsent_steps + len(episode) > self.capacity_steps:
            self._pop("dropped_backpressure")
        self._unsent.append((EpisodeHeader.from_episode(episode), payload, len(episode)))
        self.unsent_steps += len(episode)
        self.counts = self.counts.plus(ActorLedger(produced=1, unsent=1))

    def ship(self, max_wait_s: float, heartbeat: Callable[[], object] = lambda: None) -> float:
        """Put all unsent episodes, waiting at most `max_wait_s` in total for a busy queue; returns seconds waited.

        `heartbeat` is called meanwhile. Raises `Miscounted` if the store calls an episode a duplicate that was never
        sent before.
        """
        waited_s = 0.0
        while self._unsent:
            began = time.monotonic()
            replies = self._put_batch()
            self.health["put_s"] += time.monotonic() - began
            this_put = (self.producer.server.connections, replies[-1].store)
            is_first = this_put == self._last_put  # no call broke off meanwhile, so none of these was put before
            self._last_put = this_put
            for reply in replies:
                self._count(reply.status, is_first)
            if replies[-1].status is PutStatus.BUSY:
                if waited_s >= max_wait_s:
                    break
                began = time.monotonic()
                heartbeat()
                self.producer.wait_for_room(min(LONGEST_WAIT_S, max_wait_s - waited_s))
                waited_s += time.monotonic() - began
        self.health["waited_s"] += waited_s
        if time.monotonic() > self._reported_s + REPORT_S:
            self.report()
        return waited_s

    def report(self) -> None:
        """Report this incarnation's totals to the store. `ship` does so every `REPORT_S`."""
        self._reported_s = time.monotonic()
        self.health["elapsed_s"] = time.monotonic() - self._started_s
        connections, store = self._last_put
        nothing_lost = self._last_put == self._last_report
        try:
            self.producer.report(self.actor, self.incarnation, self.counts, self.health, store if nothing_lost else 0)
        except Miscounted:
            if connections == self.producer.server.connections:
                raise
            self.producer.report(self.actor, self.incarnation, self.counts, self.health)  # it was lost during this call
        self._last_report = (self.producer.server.connections, store)

    def _put_batch(self) -> list[PutReply]:
        """Put the oldest unsent episodes in one round trip and return their replies."""
        batch: list[tuple[EpisodeHeader, bytes]] = []
        size = 0
        for header, payload, _ in islice(self._unsent, BATCH_EPISODES):
            size += len(payload)
            if batch and size > BATCH_BYTES:
                break
            batch.append((header, payload))
        return self.producer.put_all(batch)

    def _pop(self, term: str) -> EpisodeHeader:
        """Remove the oldest episode and count it as `term`."""
        header, _, steps = self._unsent.popleft()
        self.unsent_steps -= steps
        self.counts = self.counts.plus(ActorLedger(**{"unsent": -1, term: 1}))
        return header

    def _count(self, status: PutStatus, is_first: bool) -> None:
        if status is PutStatus.BUSY:
            return
        header = self._pop("refused_fenced" if status is PutStatus.FENCED else "accepted")
        if status is PutStatus.DUPLICATE and is_first:
            raise Miscounted(f"the store has an episode {header.episode_id} that is not this actor's: it is lost")
