"""`QueueModel`: what the queue promises, in one process and as simple as possible; the oracle of random histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from actors.config import QueueConfig
from actors.transport.base import (
    DeadLetter,
    Delivery,
    DropReason,
    EpisodeHeader,
    Fenced,
    Generation,
    PutReply,
    PutStatus,
    StoreReset,
)
from actors.transport.ledger import ActorLedger, Ledger, LedgerMemory
from actors.types.weights import WeightSet


@dataclass
class ModelStore:
    """What the handles of one run share. Each incarnation of an actor keeps a row of its own."""

    queued: dict[str, Delivery] = field(default_factory=dict)  # by entry id, oldest first
    pending: dict[str, Delivery] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)  # entry id -> those that began and did not end
    dead: dict[str, DeadLetter] = field(default_factory=dict)  # by dead id, oldest first
    restored_versions: dict[int, int] = field(default_factory=dict)  # generation -> version that it restored
    generation: int = 0
    next_version: int = 0  # the first that this generation may publish
    head: int = -1  # newest published version
    limits: QueueConfig | None = None  # of the learner that opened the newest generation
    ids: int = 0
    stores: int = 0  # ids of memories
    counts: Ledger = field(default_factory=Ledger)  # without the terms that `ledger` derives from the fields above
    actors: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)  # actor -> newest incarnation

    def lose_memory(self) -> None:
        vars(self).update(vars(ModelStore(stores=self.stores)))

    def ledger(self) -> Ledger:
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
        self.counts = replace(self.counts, **{term: getattr(self.counts, term) + change})

    def is_fenced(self, header: EpisodeHeader) -> bool:
        restored = (version for g, version in self.restored_versions.items() if g > header.generation)
        return header.generation > self.generation or any(header.newest_version > version for version in restored)

    def is_full(self, size: int) -> bool:
        assert self.limits is not None
        too_many, total = len(self.queued) >= self.limits.max_episodes, self.queued_bytes() + size
        return bool(self.queued) and (too_many or total > self.limits.max_bytes)

    def queued_bytes(self) -> int:
        return sum(len(d.payload) for d in self.queued.values())

    def dead_bytes(self) -> int:
        return sum(len(letter.payload) for letter in self.dead.values())

    def next_id(self) -> str:
        self.ids += 1
        return f"1-{self.ids}"

    def enqueue(self, header: EpisodeHeader, payload: bytes) -> None:
        entry_id = self.next_id()
        self.queued[entry_id] = Delivery(entry_id, header, payload, self.head)

    def release(self, entry_id: str) -> Delivery | None:
        self.attempts.pop(entry_id, None)
        return self.pending.pop(entry_id, None)

    def add_dead_letter(self, header: EpisodeHeader, payload: bytes, reason: str) -> None:
        assert self.limits is not None
        dead_id = self.next_id()
        self.dead[dead_id] = DeadLetter(dead_id, header, payload, reason)
        self.count("dead_lettered")
        while len(self.dead) > self.limits.dead_letters_kept or (
            len(self.dead) > 1 and self.dead_bytes() > self.limits.max_bytes
        ):
            del self.dead[next(iter(self.dead))]
            self.count("dead_letters_evicted")

    def drop_fenced(self) -> None:
        for entries in (self.queued, self.pending):
            for entry_id in [e for e, delivery in entries.items() if self.is_fenced(delivery.header)]:
                del entries[entry_id]
                self.attempts.pop(entry_id, None)
                self.count("fenced")

    def register(self, actor: str, incarnation: int) -> None:
        """Make sure that this incarnation has a row. If it is the newest, the unsent episodes of the previous one are
        lost."""
        latest = self.latest.get(actor)
        self.actors.setdefault((actor, incarnation), ActorLedger())
        if latest is None or incarnation > latest:
            self.latest[actor] = incarnation
            if latest is not None:
                old = self.actors[actor, latest]
                self.actors[actor, latest] = replace(old, unsent=0, lost_with_actor=old.lost_with_actor + old.unsent)

    def account(self, key: tuple[str, int], term: str) -> None:
        """Count one episode as `term`. It was reported as unsent, was counted as lost, or was produced since the last
        report, in this order of preference."""
        old = self.actors[key]
        source, change = (
            ("unsent", -1) if old.unsent else ("lost_with_actor", -1) if old.lost_with_actor else ("produced", 1)
        )
        moved = replace(old, **{source: getattr(old, source) + change})
        self.actors[key] = replace(moved, **{term: getattr(moved, term) + 1})


class QueueModel:
    """A handle on a `ModelStore`, with the methods of `Transport` of which histories consist."""

    def __init__(self, config: QueueConfig, store: ModelStore) -> None:
        self._config, self._store = config, store
        self._generation = self._turn = 0

    def close(self) -> None:
        """Nothing is open."""

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        status = self._put(header, payload)
        return PutReply(status, self._store.head, self._store.counts.store)

    def put_all(self, episodes: Sequence[tuple[EpisodeHeader, bytes]]) -> list[PutReply]:
        replies: list[PutReply] = []
        for header, payload in episodes:
            replies.append(self.put(header, payload))
            if replies[-1].status is PutStatus.BUSY:
                break
        return replies

    def _put(self, header: EpisodeHeader, payload: bytes) -> PutStatus:
        s, key = self._store, (header.actor, header.incarnation)
        if key in s.actors and header.sequence < s.actors[key].next_sequence:
            return PutStatus.DUPLICATE
        if s.limits is None:
            return PutStatus.BUSY
        s.register(*key)
        if s.is_fenced(header):
            s.account(key, "refused_fenced")
            return PutStatus.FENCED
        limit = s.limits.max_episode_bytes
        oversize = len(payload) > limit
        if not oversize and s.is_full(len(payload)):
            return PutStatus.BUSY
        s.account(key, "accepted")
        s.actors[key] = replace(s.actors[key], next_sequence=header.sequence + 1)
        s.count("accepted")
        if oversize:
            s.add_dead_letter(header, b"", f"{len(payload)} bytes, more than the {limit} allowed")
        else:
            s.enqueue(header, payload)
        return PutStatus.OK

    def report(self, actor: str, incarnation: int, totals: ActorLedger, health: dict[str, float]) -> None:
        s, key = self._store, (actor, incarnation)
        s.register(*key)
        known = s.actors[key]
        lost = max(0, totals.accepted - known.accepted)
        s.count("accepted", lost)
        s.count("lost_with_store", lost)
        unsent = totals.unsent + min(0, totals.accepted - known.accepted)
        is_superseded = incarnation < s.latest[actor]
        s.actors[key] = replace(
            totals,
            accepted=known.accepted + lost,
            unsent=0 if is_superseded else unsent,
            lost_with_actor=unsent if is_superseded else 0,
            next_sequence=known.next_sequence,
        )

    def open_generation(
        self, restored_version: int, consumer: str, floor: Generation | None = None, memory: LedgerMemory | None = None
    ) -> Generation:
        s, floor = self._store, floor or Generation(0, 0)
        known = memory.ledger if memory else Ledger()
        lost = known.store != 0 and (s.counts.store != known.store or s.counts.turn < known.turn)
        next_version = max(s.head + 1, restored_version + 1, s.next_version)
        if lost or not s.restored_versions:
            next_version = max(next_version, floor.next_version)
        if lost and memory is not None:
            s.counts = replace(memory.after_loss(), store=0)
            s.actors = dict(s.counts.actors)
            s.latest = {actor: numbers[-1] for actor, numbers in s.counts.listed().items()}
        if s.counts.store == 0:
            s.stores += 1
            s.counts = replace(s.counts, store=s.stores)
        s.count("turn")
        self._turn = s.counts.turn
        self._generation = s.generation = max(s.generation, floor.number) + 1
        s.restored_versions[s.generation], s.next_version, s.limits = restored_version, next_version, self._config
        s.drop_fenced()
        return Generation(s.generation, next_version, s.counts.store, s.counts.turn)

    def pending(self) -> list[Delivery]:
        self._check()
        return list(self._store.pending.values())

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        s = self._next_turn()
        taken = list(s.queued.values())[:count]
        s.pending |= {d.entry_id: s.queued.pop(d.entry_id) for d in taken}
        return taken

    def begin_attempt(self, entry_id: str) -> int:
        s = self._next_turn()
        s.attempts[entry_id] = s.attempts.get(entry_id, 0) + 1
        return s.attempts[entry_id]

    def ack(self, entry_ids: Sequence[str]) -> list[str]:
        return self._settle(entry_ids, "trained")

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        return self._settle(entry_ids, reason.value)

    def revoke(self, count: int) -> None:
        s = self._next_turn()
        s.count("trained", -count)
        s.count("trained_then_lost", count)

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        s = self._next_turn()
        delivery = s.release(entry_id)
        if delivery is not None:
            s.add_dead_letter(delivery.header, delivery.payload, reason)
        return delivery is not None

    def dead_letters(self) -> list[DeadLetter]:
        return list(self._store.dead.values())

    def requeue(self, dead_id: str) -> PutStatus:
        s = self._store
        letter = s.dead.get(dead_id)
        if letter is None or not letter.payload:
            raise KeyError(dead_id)
        if s.is_fenced(letter.header):
            return PutStatus.FENCED
        if s.is_full(len(letter.payload)):
            return PutStatus.BUSY
        del s.dead[dead_id]
        s.count("dead_lettered", -1)
        s.enqueue(letter.header, letter.payload)
        return PutStatus.OK

    def publish(self, weights: WeightSet) -> None:
        self._store.head = weights.version

    def head(self) -> int:
        return self._store.head

    def ledger(self) -> Ledger:
        return self._store.ledger()

    def _settle(self, entry_ids: Sequence[str], term: str) -> list[str]:
        if not entry_ids:
            return []
        s = self._next_turn()
        settled = [entry_id for entry_id in entry_ids if s.release(entry_id) is not None]
        s.count(term, len(settled))
        return settled

    def _check(self) -> None:
        if self._generation > self._store.generation:
            raise StoreReset
        if self._generation < self._store.generation or self._generation == 0:
            raise Fenced

    def _next_turn(self) -> ModelStore:
        """Count a call of the consumer."""
        self._check()
        if self._turn != self._store.counts.turn:
            raise StoreReset
        self._store.count("turn")
        self._turn += 1
        return self._store
