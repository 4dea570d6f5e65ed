"""The transport inside one process: same verbs and same ledger as on Redis, for one-process runs and for tests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from actors.codec import decode_weights, encode_weights
from actors.config import QueueConfig
from actors.transport.base import (
    BUSY_RETRY_S,
    DeadLetter,
    Delivery,
    DropReason,
    EpisodeHeader,
    Fenced,
    Generation,
    Malformed,
    NewIncarnation,
    PutReply,
    PutStatus,
    StoreReset,
)
from actors.transport.health import Health, fault_of_report
from actors.transport.ledger import ActorLedger, Ledger, LedgerMemory
from actors.transport.memory_store import MemoryStore as MemoryStore
from actors.types.names import is_name
from actors.types.weights import WeightSet


class MemoryTransport:
    """One handle on a store; a second handle stands for a second process. See `actors.transport.base`."""

    def __init__(self, config: QueueConfig | None = None, store: MemoryStore | None = None) -> None:
        self._config = config or QueueConfig()
        self._store = store or MemoryStore()
        self._generation = 0
        self._turn = 0  # as the store should remember it

    def close(self) -> None:
        """Nothing to release."""

    @property
    def max_episode_bytes(self) -> int:
        return self._config.max_episode_bytes

    def new_incarnation(self, actor: str) -> NewIncarnation:
        s = self._store
        if not is_name(actor):
            raise Malformed(f"no name of an actor: {actor!r}")
        with s.changed:
            latest = s.latest.get(actor)
            number = max(time.time_ns() // 1_000_000, 1 + (latest or 0))
            s.enter(actor, number)
            return NewIncarnation(number, latest is None)

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        s = self._store
        with s.changed:
            who = (header.actor, header.incarnation)
            s.restore(*who)
            if who in s.actors and header.sequence < s.actors[who].next_sequence:
                return self._reply(PutStatus.DUPLICATE)
            if header.generation > s.generation:
                return self._reply(PutStatus.BUSY)  # this store lost its memory; its learner has yet to open it again
            s.enter(*who)
            if self._is_fenced(header):
                self._account(who, "refused_fenced")
                return self._reply(PutStatus.FENCED)
            oversize = len(payload) > self._config.max_episode_bytes
            if not oversize and self._is_full(len(payload)):
                return self._reply(PutStatus.BUSY)
            self._account(who, "accepted")
            s.actors[who] = replace(s.actors[who], next_sequence=header.sequence + 1)
            self._count("accepted")
            if oversize:
                limit = self._config.max_episode_bytes
                self._bury(header, b"", f"{len(payload)} bytes, more than the {limit} allowed")
            else:
                self._enqueue(header, payload)
            return self._reply(PutStatus.OK)

    def put_all(self, episodes: Sequence[tuple[EpisodeHeader, bytes]]) -> list[PutReply]:
        replies: list[PutReply] = []
        if len({(header.actor, header.incarnation) for header, _ in episodes}) > 1:
            raise Malformed("episodes of two incarnations in one call")
        for header, payload in episodes:
            replies.append(self.put(header, payload))
            if replies[-1].status is PutStatus.BUSY:
                break
        return replies

    def report(self, actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float]) -> None:
        s, who = self._store, (actor, incarnation)
        if fault := fault_of_report(actor, incarnation, totals, health):
            raise Malformed(fault)
        with s.changed:
            s.enter(*who)
            known = s.actors[who]
            unknown = max(0, totals.accepted - known.accepted)  # to a store that has since lost its memory
            self._count("accepted", unknown)
            self._count("lost_with_store", unknown)
            unsent = totals.unsent + min(0, totals.accepted - known.accepted)
            gone = incarnation < s.latest[actor]
            s.actors[who] = replace(
                totals,
                accepted=known.accepted + unknown,
                unsent=0 if gone else unsent,
                lost_with_actor=unsent if gone else 0,
                next_sequence=known.next_sequence,
            )
            if not gone:
                s.fares[who] = {**health, "reported_s": time.time()}

    def current_generation(self) -> int:
        with self._store.changed:
            return self._store.generation

    def claim_generation(self, number: int) -> None:
        s = self._store
        with s.changed:
            if number <= s.generation:
                raise Fenced(f"generation {number} cannot be claimed, {s.generation} is open")
            s.generation = number
            s.changed.notify_all()  # an older learner that waits learns of its end

    def open_generation(
        self,
        restored_version: int,
        consumer: str,
        floor: Generation | None = None,
        memory: LedgerMemory | None = None,
        claimed: int = 0,
    ) -> Generation:
        s = self._store
        floor = floor or Generation(0, 0)
        with s.changed:
            if claimed and claimed < s.generation:
                raise Fenced(f"generation {claimed} is not open, {s.generation} is")
            known = memory.ledger if memory else Ledger()
            lost = known.store != 0 and (s.counts.store != known.store or s.counts.turn < known.turn)
            next_version = max(self._head() + 1, restored_version + 1, s.next_version)
            if lost or not s.restored_versions:
                next_version = max(next_version, floor.next_version)
            if memory is not None and lost:
                self._start_again(memory)
            for actor in s.latest:
                s.retire_the_old(actor)
            if lost or s.counts.store == 0:
                s.counts = replace(s.counts, store=1 + secrets.randbelow(2**48))
            self._count("turn")
            self._turn = s.counts.turn
            self._generation = s.generation = claimed or max(s.generation, floor.number) + 1
            s.restored_versions[s.generation], s.next_version = restored_version, next_version
            for version in [v for v in s.made if v > restored_version]:
                given_up = s.made.pop(version)
                self._count("trained", -given_up)
                self._count("trained_then_lost", given_up)
            for entries in (s.queued, s.pending):
                for entry_id in [e for e, delivery in entries.items() if self._is_fenced(delivery.header)]:
                    del entries[entry_id]
                    s.attempts.pop(entry_id, None)
                    self._count("fenced")
            s.changed.notify_all()  # an older learner that waits learns of its end
            return Generation(s.generation, next_version, s.counts.store, s.counts.turn)

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        s = self._store
        with s.changed:
            s.changed.wait_for(lambda: s.queued or self._generation != s.generation, timeout_s)
            self._turn_over()
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
            self._turn_over()
            if entry_id not in s.pending:
                return 0
            s.attempts[entry_id] = s.attempts.get(entry_id, 0) + 1
            return s.attempts[entry_id]

    def end_attempt(self, entry_id: str) -> None:
        with self._store.changed:
            self._turn_over()
            self._store.attempts.pop(entry_id, None)

    def ack(self, entry_ids: Sequence[str], made_version: int = -1, durable_version: int = -1) -> list[str]:
        s = self._store
        with s.changed:
            settled = self._settle(entry_ids, "trained")
            if settled:
                s.made[made_version] = s.made.get(made_version, 0) + len(settled)
            for version in [v for v in s.made if v <= durable_version]:
                del s.made[version]
            return settled

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        with self._store.changed:
            return self._settle(entry_ids, reason.value)

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        with self._store.changed:
            self._turn_over()
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

    def report_learner(self, health: Mapping[str, float]) -> None:
        self._store.learner = {**health, "reported_s": time.time()}

    def health(self) -> Health:
        s = self._store
        with s.changed:
            oldest = min((d.enqueued_ms for e in (s.queued, s.pending) for d in e.values()), default=None)
            age_s = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
            return Health(time.time(), s.generation, self._head(), age_s, dict(s.learner), dict(s.fares))

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
        if mine > self._store.generation:
            raise StoreReset(f"generation {mine} is unknown here, {self._store.generation} is the last")
        if mine < self._store.generation or mine == 0:
            raise Fenced(f"generation {mine} is not open, {self._store.generation} is")

    def _turn_over(self) -> None:
        """Each of the consumer's calls is a turn; where store and consumer differ, the store lost some."""
        self._check_generation()
        if self._turn != self._store.counts.turn:
            raise StoreReset(f"the store is at turn {self._store.counts.turn}, the learner at {self._turn}")
        self._count("turn")
        self._turn += 1

    def _start_again(self, memory: LedgerMemory) -> None:
        s = self._store
        s.counts = memory.after_loss()
        s.actors = dict(s.counts.actors)
        s.latest = {actor: numbers[-1] for actor, numbers in s.counts.listed().items()}
        for emptied in (s.queued, s.pending, s.attempts, s.dead, s.made, s.fares, s.retired):
            emptied.clear()

    def _is_fenced(self, header: EpisodeHeader) -> bool:
        """Beyond what a generation after its own went back to."""
        later = (v for g, v in self._store.restored_versions.items() if g > header.generation)
        return any(header.newest_version > version for version in later)

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
        time_ms = int(entry_id.partition("-")[0])
        self._store.queued[entry_id] = Delivery(entry_id, header, payload, time_ms, self._head())
        self._store.changed.notify_all()

    def _release(self, entry_id: str) -> Delivery | None:
        self._store.attempts.pop(entry_id, None)
        return self._store.pending.pop(entry_id, None)

    def _settle(self, entry_ids: Sequence[str], term: str) -> list[str]:
        if not entry_ids:
            return []
        self._turn_over()
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

    def _account(self, who: tuple[str, int], term: str) -> None:
        """Count one episode as `term`: it was unsent when last reported, thought lost, or produced since."""
        old = self._store.actors[who]
        source, change = (
            ("unsent", -1) if old.unsent else ("lost_with_actor", -1) if old.lost_with_actor else ("produced", 1)
        )
        moved = replace(old, **{source: getattr(old, source) + change})
        self._store.actors[who] = replace(moved, **{term: getattr(moved, term) + 1})
