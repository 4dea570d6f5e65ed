"""`MemoryStore`: the state of an in-memory transport, in place of a server's keys, and the operations on it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from actors.codec import WeightBlob
from actors.config import QueueConfig
from actors.transport.base import DeadLetter, Delivery, EpisodeHeader
from actors.transport.ledger import ActorLedger, Ledger, LedgerMemory


@dataclass
class MemoryStore:
    """The state that the handles of one run share. Every access holds `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    queued: dict[str, Delivery] = field(default_factory=dict)  # by entry id, oldest first
    pending: dict[str, Delivery] = field(default_factory=dict)  # by entry id
    attempts: dict[str, int] = field(default_factory=dict)  # entry id -> attempts that began and did not end
    dead: dict[str, DeadLetter] = field(default_factory=dict)  # by dead id, oldest first
    weights: dict[int, WeightBlob] = field(default_factory=dict)  # by version
    restored_versions: dict[int, int] = field(default_factory=dict)  # generation -> version that it restored
    generation: int = 0  # the newest that was claimed or opened
    next_version: int = 0  # the first that this generation may publish
    limits: QueueConfig | None = None  # of the learner that opened the newest generation
    ids: int = 0  # number of entry ids assigned
    counts: Ledger = field(default_factory=Ledger)  # without the terms that `ledger` derives from the fields above
    actors: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)  # by (actor, incarnation)
    imported: dict[str, str] = field(default_factory=dict)  # id in an episode file -> id under which it was accepted
    latest: dict[str, int] = field(default_factory=dict)  # actor -> newest incarnation
    learner_health: dict[str, float] = field(default_factory=dict)  # the learner's last report
    actor_health: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)  # by (actor, incarnation)

    def ledger(self) -> Ledger:
        """The current counts of all episodes."""
        return replace(
            self.counts,
            queued=len(self.queued),
            pending=len(self.pending),
            queued_bytes=self.queued_bytes(),
            dead_bytes=self.dead_bytes(),
            stream_entries=len(self.queued) + len(self.pending),
            actors=dict(self.actors),
        )

    def count(self, term: str, change: int = 1) -> None:
        """Add `change` to a term of the ledger."""
        self.counts = replace(self.counts, **{term: getattr(self.counts, term) + change})

    def head(self) -> int:
        """The newest published version, -1 = none."""
        return max(self.weights, default=-1)

    # The queue

    def is_fenced(self, header: EpisodeHeader) -> bool:
        """Whether a later generation restored a version older than this episode's weights, or the episode is of a run
        that started afresh since."""
        if header.generation > self.generation:
            return True
        restored = (version for g, version in self.restored_versions.items() if g > header.generation)
        return any(header.newest_version > version for version in restored)

    def is_full(self, size: int, config: QueueConfig) -> bool:
        """Whether an episode of `size` bytes must wait. An empty queue accepts any size, so that an episode larger than
        `max_bytes` does not wait forever."""
        waiting = len(self.queued)
        return waiting > 0 and (waiting >= config.max_episodes or self.queued_bytes() + size > config.max_bytes)

    def queued_bytes(self) -> int:
        """Payload bytes in the queue."""
        return sum(len(d.payload) for d in self.queued.values())

    def dead_bytes(self) -> int:
        """Payload bytes of the dead letters."""
        return sum(len(letter.payload) for letter in self.dead.values())

    def enqueue(self, header: EpisodeHeader, payload: bytes) -> None:
        """Append an episode and wake the consumer."""
        entry_id = self._next_id()
        enqueued_ms = int(entry_id.partition("-")[0])
        self.queued[entry_id] = Delivery(entry_id, header, payload, enqueued_ms, self.head())
        self.changed.notify_all()

    def release(self, entry_id: str) -> Delivery | None:
        """Remove a pending entry; None if it is not pending."""
        self.attempts.pop(entry_id, None)
        return self.pending.pop(entry_id, None)

    def settle(self, entry_ids: Sequence[str], term: str) -> list[str]:
        """Remove pending entries and count them as `term`; returns those that were pending."""
        settled = [entry_id for entry_id in entry_ids if self.release(entry_id) is not None]
        self.count(term, len(settled))
        return settled

    def add_dead_letter(self, header: EpisodeHeader, payload: bytes, reason: str, config: QueueConfig) -> None:
        """Add a dead letter, and evict the oldest ones beyond the configured limits."""
        dead_id = self._next_id()
        self.dead[dead_id] = DeadLetter(dead_id, header, payload, reason)
        self.count("dead_lettered")
        while len(self.dead) > config.dead_letters_kept or (
            len(self.dead) > 1 and self.dead_bytes() > config.max_bytes
        ):
            del self.dead[next(iter(self.dead))]
            self.count("dead_letters_evicted")

    def _next_id(self) -> str:
        self.ids += 1
        return f"{time.time_ns() // 1_000_000}-{self.ids}"

    # Generations

    def is_behind(self, memory: LedgerMemory | None) -> bool:
        """Whether this store is emptier or older than the one that `memory` describes."""
        known = memory.ledger if memory else Ledger()
        return known.store != 0 and (self.counts.store != known.store or self.counts.turn < known.turn)

    def reset(self, memory: LedgerMemory) -> None:
        """Clear the queue and continue the ledger from `memory`, with a new id for this store."""
        self.counts = memory.after_loss()
        self.counts = replace(self.counts, store=new_store_id())
        self.actors = dict(self.counts.actors)
        self.latest = {actor: numbers[-1] for actor, numbers in self.counts.listed().items()}
        for table in (self.queued, self.pending, self.attempts, self.dead, self.actor_health):
            table.clear()

    def drop_fenced(self) -> None:
        """Drop entries that are fenced by the current generation."""
        for entries in (self.queued, self.pending):
            for entry_id in [e for e, delivery in entries.items() if self.is_fenced(delivery.header)]:
                del entries[entry_id]
                self.attempts.pop(entry_id, None)
                self.count("fenced")

    # Rows of actors

    def register(self, actor: str, incarnation: int) -> None:
        """Make sure that this incarnation has a row. If it is the newest, count the unsent episodes of the previous one
        as lost."""
        latest = self.latest.get(actor)
        self.actors.setdefault((actor, incarnation), ActorLedger())
        if latest is not None and incarnation <= latest:
            return
        self.latest[actor] = incarnation
        if latest is not None:
            old = self.actors[actor, latest]
            self.actors[actor, latest] = replace(old, unsent=0, lost_with_actor=old.lost_with_actor + old.unsent)
            self.actor_health.pop((actor, latest), None)

    def account(self, actor: str, incarnation: int, term: str) -> None:
        """Count one episode as `term`. It was reported as unsent, was counted as lost, or was produced since the last
        report, in this order of preference."""
        old = self.actors[actor, incarnation]
        source, change = (
            ("unsent", -1) if old.unsent else ("lost_with_actor", -1) if old.lost_with_actor else ("produced", 1)
        )
        moved = replace(old, **{source: getattr(old, source) + change})
        self.actors[actor, incarnation] = replace(moved, **{term: getattr(moved, term) + 1})


def new_store_id() -> int:
    """Draw a random id for a store whose first generation opens."""
    return 1 + secrets.randbelow(2**48)
