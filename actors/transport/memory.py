"""The transport inside one process: same verbs and same ledger as on Redis, for one-process runs and for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from actors.codec import WeightBlob, decode_weights, encode_weights
from actors.config import QueueConfig
from actors.transport.base import (
    BUSY_RETRY_S,
    DeadLetter,
    Delivery,
    DropReason,
    EpisodeHeader,
    Fenced,
    Generation,
    PutReply,
    PutStatus,
)
from actors.transport.ledger import ActorLedger, Ledger
from actors.weights import WeightSet


@dataclass
class MemoryStore:
    """What the handles of one run share; touched only by `MemoryTransport`, under `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    queued: dict[str, Delivery] = field(default_factory=dict)  # by entry id, oldest first
    pending: dict[str, Delivery] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    dead: dict[str, DeadLetter] = field(default_factory=dict)  # by dead id, oldest first
    weights: dict[int, WeightBlob] = field(default_factory=dict)  # by version
    went_back_to: dict[int, int] = field(default_factory=dict)  # generation -> version
    generation: int = 0
    ids: int = 0
    counts: Ledger = field(default_factory=Ledger)  # settled terms only; the rest is what the fields above hold
    actors: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)  # actor -> incarnation


class MemoryTransport:
    """One handle on a store; a second handle stands for a second process. See `actors.transport.base`."""

    def __init__(self, config: QueueConfig | None = None, store: MemoryStore | None = None) -> None:
        self._config = config or QueueConfig()
        self._store = store or MemoryStore()
        self._generation = 0

    def close(self) -> None:
        """Nothing to release."""

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        s = self._store
        with s.changed:
            who = (header.actor, header.incarnation)
            if header.sequence <= s.sequences.get(who, -1):
                return self._reply(PutStatus.DUPLICATE)
            self._enter(*who)
            if self._is_fenced(header):
                self._account(who, "refused_fenced")
                return self._reply(PutStatus.FENCED)
            oversize = len(payload) > self._config.max_episode_bytes
            if not oversize and self._is_full(len(payload)):
                return self._reply(PutStatus.BUSY)
            s.sequences[who] = header.sequence
            self._account(who, "accepted")
            self._count("accepted")
            if oversize:
                limit = self._config.max_episode_bytes
                self._bury(header, b"", f"{len(payload)} bytes, more than the {limit} allowed")
            else:
                self._enqueue(header, payload)
            return self._reply(PutStatus.OK)

    def report(
        self, actor: str, incarnation: int, produced: int, dropped_backpressure: int, refused_fenced: int, unsent: int
    ) -> None:
        s = self._store
        with s.changed:
            self._enter(actor, incarnation)
            gone = incarnation < s.latest[actor]
            s.actors[actor, incarnation] = ActorLedger(
                produced=produced,
                accepted=s.actors[actor, incarnation].accepted,
                refused_fenced=refused_fenced,
                dropped_backpressure=dropped_backpressure,
                unsent=0 if gone else unsent,
                lost_with_actor=unsent if gone else 0,
            )

    def open_generation(self, went_back_to: int, consumer: str, floor: Generation | None = None) -> Generation:
        s = self._store
        floor = floor or Generation(0, 0)
        with s.changed:
            self._generation = s.generation = max(s.generation, floor.number) + 1
            s.went_back_to[s.generation] = went_back_to
            for entries in (s.queued, s.pending):
                for entry_id in [e for e, delivery in entries.items() if self._is_fenced(delivery.header)]:
                    del entries[entry_id]
                    s.attempts.pop(entry_id, None)
                    self._count("fenced")
            s.changed.notify_all()  # an older learner that waits learns of its end
            return Generation(s.generation, max(self._head() + 1, went_back_to + 1, floor.next_version))

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        s = self._store
        with s.changed:
            s.changed.wait_for(lambda: s.queued or self._generation != s.generation, timeout_s)
            self._check_generation()
            taken = list(s.queued.values())[:count]
            for delivery in taken:
                s.pending[delivery.entry_id] = s.queued.pop(delivery.entry_id)
            return taken

    def pending(self) -> list[Delivery]:
        with self._store.changed:
            self._check_generation()
            return list(self._store.pending.values())

    def begin_attempt(self, entry_id: str) -> int:
        s = self._store
        with s.changed:
            self._check_generation()
            if entry_id not in s.pending:
                return 0
            s.attempts[entry_id] = s.attempts.get(entry_id, 0) + 1
            return s.attempts[entry_id]

    def ack(self, entry_ids: Sequence[str]) -> list[str]:
        return self._settle(entry_ids, "trained")

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        return self._settle(entry_ids, reason.value)

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        with self._store.changed:
            self._check_generation()
            delivery = self._release(entry_id)
            if delivery is None:
                return False
            self._bury(delivery.header, delivery.payload, reason)
            return True

    def dead_letters(self) -> list[DeadLetter]:
        with self._store.changed:
            return list(self._store.dead.values())

    def requeue(self, dead_id: str) -> PutStatus:
        s = self._store
        with s.changed:
            letter = s.dead.get(dead_id)
            if letter is None or not letter.payload:
                raise KeyError(f"no dead letter {dead_id} with a payload")
            if self._is_fenced(letter.header):
                return PutStatus.FENCED
            if self._is_full(len(letter.payload)):
                return PutStatus.BUSY
            del s.dead[dead_id]
            self._count("dead_lettered", -1)
            self._enqueue(letter.header, letter.payload)
            return PutStatus.OK

    def ledger(self) -> Ledger:
        s = self._store
        with s.changed:
            return replace(
                s.counts,
                queued=len(s.queued),
                pending=len(s.pending),
                queued_bytes=self._queued_bytes(),
                dead_bytes=self._dead_bytes(),
                stream_entries=len(s.queued) + len(s.pending),
                actors=dict(s.actors),
            )

    def publish(self, weights: WeightSet) -> None:
        s = self._store
        blob = encode_weights(weights)
        with s.changed:
            self._check_generation(weights.generation)
            if weights.version <= self._head():
                if s.weights.get(weights.version) == blob:
                    return
                raise ValueError(f"weights {weights.version} are not newer than the published {self._head()}")
            s.weights[weights.version] = blob
            for version in sorted(s.weights)[: -self._config.weights_kept]:
                del s.weights[version]

    def head(self) -> int:
        with self._store.changed:
            return self._head()

    def fetch(self, newer_than: int) -> WeightSet | None:
        with self._store.changed:
            blob = self._store.weights[self._head()] if self._head() > newer_than else None
        return None if blob is None else decode_weights(blob)

    def _head(self) -> int:
        return max(self._store.weights, default=-1)

    def _reply(self, status: PutStatus) -> PutReply:
        return PutReply(status, BUSY_RETRY_S if status is PutStatus.BUSY else 0.0, self._head())

    def _next_id(self) -> str:
        self._store.ids += 1
        return f"{time.time_ns() // 1_000_000}-{self._store.ids}"

    def _count(self, term: str, change: int = 1) -> None:
        s = self._store
        s.counts = replace(s.counts, **{term: getattr(s.counts, term) + change})

    def _check_generation(self, generation: int | None = None) -> None:
        mine = self._generation if generation is None else generation
        if mine != self._store.generation or mine == 0:
            raise Fenced(f"generation {mine} is not open, {self._store.generation} is")

    def _is_fenced(self, header: EpisodeHeader) -> bool:
        """Of a generation to come, or beyond what a later generation went back to."""
        s = self._store
        later = (v for g, v in s.went_back_to.items() if g > header.generation)
        return header.generation > s.generation or any(header.newest_version > version for version in later)

    def _is_full(self, size: int) -> bool:
        waiting = len(self._store.queued)
        # an empty queue takes any episode, or one larger than the bound would wait for ever
        return waiting > 0 and (
            waiting >= self._config.max_episodes or self._queued_bytes() + size > self._config.max_bytes
        )

    def _queued_bytes(self) -> int:
        return sum(len(d.payload) for d in self._store.queued.values())

    def _dead_bytes(self) -> int:
        return sum(len(letter.payload) for letter in self._store.dead.values())

    def _enqueue(self, header: EpisodeHeader, payload: bytes) -> None:
        entry_id = self._next_id()
        self._store.queued[entry_id] = Delivery(entry_id, header, payload, int(entry_id.partition("-")[0]))
        self._store.changed.notify_all()

    def _release(self, entry_id: str) -> Delivery | None:
        self._store.attempts.pop(entry_id, None)
        return self._store.pending.pop(entry_id, None)

    def _settle(self, entry_ids: Sequence[str], term: str) -> list[str]:
        with self._store.changed:
            self._check_generation()
            settled = [entry_id for entry_id in entry_ids if self._release(entry_id) is not None]
            self._count(term, len(settled))
            return settled

    def _bury(self, header: EpisodeHeader, payload: bytes, reason: str) -> None:
        dead = self._store.dead
        dead_id = self._next_id()
        dead[dead_id] = DeadLetter(dead_id, header, payload, reason)
        self._count("dead_lettered")
        while len(dead) > self._config.dead_letters_kept or (
            len(dead) > 1 and self._dead_bytes() > self._config.max_bytes
        ):
            del dead[next(iter(dead))]
            self._count("dead_letters_evicted")

    def _enter(self, actor: str, incarnation: int) -> None:
        """Know this incarnation; what the one before it had not sent is lost with it."""
        s = self._store
        s.actors.setdefault((actor, incarnation), ActorLedger())
        latest = s.latest.get(actor)
        if latest is None or incarnation > latest:
            s.latest[actor] = incarnation
            if latest is not None:
                old = s.actors[actor, latest]
                s.actors[actor, latest] = replace(old, unsent=0, lost_with_actor=old.lost_with_actor + old.unsent)

    def _account(self, who: tuple[str, int], term: str) -> None:
        """Count one episode as `term`: it was unsent when last reported, thought lost, or produced since."""
        old = self._store.actors[who]
        source, change = (
            ("unsent", -1) if old.unsent else ("lost_with_actor", -1) if old.lost_with_actor else ("produced", 1)
        )
        moved = replace(old, **{source: getattr(old, source) + change})
        self._store.actors[who] = replace(moved, **{term: getattr(moved, term) + 1})
