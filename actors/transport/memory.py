"""`MemoryTransport`: the transport inside one process, for `tamiyo train --in-process` and for tests.

It has the methods of the one on Redis and the same ledger, except that each incarnation of an actor keeps a row of its
own, and that it does not check what its own process reports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from actors.codec import decode_weights, encode_weights, manifest_digest
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
    Miscounted,
    NewIncarnation,
    PutReply,
    PutStatus,
    StoreReset,
)
from actors.transport.health import Health
from actors.transport.ledger import ActorLedger, Ledger, LedgerMemory
from actors.transport.memory_store import MemoryStore as MemoryStore
from actors.transport.memory_store import new_store_id
from actors.types.weights import WeightSet


class MemoryTransport:
    """A handle on a `MemoryStore`; several handles stand for several processes. See `actors.transport.base`."""

    def __init__(self, config: QueueConfig | None = None, store: MemoryStore | None = None) -> None:
        self._config = config or QueueConfig()
        self._store = store or MemoryStore()
        self._generation = 0
        self._turn = 0  # the ledger's `turn` after this handle's last call

    def close(self) -> None:
        """Do nothing; there is nothing to release."""

    @property
    def max_episode_bytes(self) -> int:
        return self._config.max_episode_bytes

    def new_incarnation(self, actor: str) -> NewIncarnation:
        s = self._store
        with s.changed:
            latest = s.latest.get(actor)
            number = max(time.time_ns() // 1_000_000, 1 + (latest or 0))
            s.register(actor, number)
            return NewIncarnation(number, latest is None)

    @property
    def turn(self) -> int:
        return self._turn

    @property
    def connections(self) -> int:
        return 1

    def wait_for_room(self, timeout_s: float) -> None:
        s = self._store
        with s.changed:
            s.changed.wait_for(lambda: s.limits is not None and not s.is_full(0, s.limits), timeout_s)

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        s = self._store
        with s.changed:
            key = (header.actor, header.incarnation)
            if key in s.actors and header.sequence < s.actors[key].next_sequence:
                return self._reply(PutStatus.DUPLICATE)
            if s.limits is None:
                return self._reply(PutStatus.BUSY)  # no learner has opened this store, which may have lost its memory
            s.register(*key)
            if s.is_fenced(header):
                s.account(*key, "refused_fenced")
                return self._reply(PutStatus.FENCED)
            limit = s.limits.max_episode_bytes
            oversize = len(payload) > limit
            if not oversize and s.is_full(len(payload), s.limits):
                return self._reply(PutStatus.BUSY)
            s.account(*key, "accepted")
            s.actors[key] = replace(s.actors[key], next_sequence=header.sequence + 1)
            s.count("accepted")
            if oversize:
                s.add_dead_letter(header, b"", f"{len(payload)} bytes, more than the {limit} allowed", s.limits)
            else:
                s.enqueue(header, payload)
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

    def import_episode(self, original_id: str, header: EpisodeHeader, payload: bytes) -> PutReply:
        s = self._store
        with s.changed:
            known = s.imported.get(original_id)
            if known is not None:
                return self._reply(PutStatus.OK if known == header.episode_id else PutStatus.DUPLICATE)
            reply = self.put(header, payload)
            if reply.status is PutStatus.OK:
                s.imported[original_id] = header.episode_id
            return reply

    def report(
        self, actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float], store: int = 0
    ) -> None:
        s, key = self._store, (actor, incarnation)
        with s.changed:
            s.register(*key)
            known = s.actors[key]
            lost = max(0, totals.accepted - known.accepted)  # accepted by a store that has lost its memory since
            if lost and store == s.counts.store and store:
                raise Miscounted(f"actor {actor}/{incarnation} counts {lost} accepted episodes more than the store")
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
            if not is_superseded:
                s.actor_health[key] = {**health, "reported_s": time.time()}

    def current_generation(self) -> int:
        with self._store.changed:
            return self._store.generation

    def claim_generation(self, number: int) -> None:
        s = self._store
        with s.changed:
            if number <= s.generation:
                raise Fenced(f"generation {number} cannot be claimed: the newest is {s.generation}")
            s.generation = number
            s.changed.notify_all()  # wakes an older learner, which is fenced now

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
                raise Fenced(f"generation {claimed} is not open: the newest is {s.generation}")
            lost = s.is_behind(memory)
            next_version = max(s.head() + 1, restored_version + 1, s.next_version)
            if lost or not s.restored_versions:
                next_version = max(next_version, floor.next_version)
            if memory is not None and lost:
                s.reset(memory)
            if s.counts.store == 0:
                s.counts = replace(s.counts, store=new_store_id())
            s.count("turn")
            self._turn = s.counts.turn
            self._generation = s.generation = claimed or max(s.generation, floor.number) + 1
            s.restored_versions[s.generation], s.next_version = restored_version, next_version
            s.limits = self._config
            s.drop_fenced()
            s.changed.notify_all()  # wakes an older learner, which is fenced now
            return Generation(s.generation, next_version, s.counts.store, s.counts.turn)

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        s = self._store
        with s.changed:
            s.changed.wait_for(lambda: s.queued or self._generation != s.generation, timeout_s)
            self._next_turn()
            taken = list(s.queued.values())[:count]
            for delivery in taken:
                s.pending[delivery.entry_id] = s.queued.pop(delivery.entry_id)
            s.changed.notify_all()  # wakes producers
            return taken

    def resize(self, max_episodes: int) -> None:
        with self._store.changed:
            self._next_turn()
            self._store.limits = replace(self._config, max_episodes=max(max_episodes, self._config.max_episodes))

    def pending(self) -> list[Delivery]:
        with self._store.changed:
            self._check_generation(self._generation)
            return list(self._store.pending.values())

    def begin_attempt(self, entry_id: str) -> int:
        s = self._store
        with s.changed:
            self._next_turn()
            if entry_id not in s.pending:
                return 0
            s.attempts[entry_id] = s.attempts.get(entry_id, 0) + 1
            return s.attempts[entry_id]

    def end_attempt(self, entry_id: str) -> None:
        with self._store.changed:
            self._next_turn()
            self._store.attempts.pop(entry_id, None)

    def ack(self, entry_ids: Sequence[str]) -> list[str]:
        with self._store.changed:
            return self._settle(entry_ids, "trained")

    def revoke(self, count: int) -> None:
        with self._store.changed:
            self._next_turn()
            self._store.count("trained", -count)
            self._store.count("trained_then_lost", count)

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        with self._store.changed:
            return self._settle(entry_ids, reason.value)

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        s = self._store
        with s.changed:
            self._next_turn()
            delivery = s.release(entry_id)
            if delivery is None:
                return False
            s.add_dead_letter(delivery.header, delivery.payload, reason, self._config)
            return True

    def waiting(self, count: int) -> list[Delivery]:
        s = self._store
        with s.changed:
            entries = [*s.pending.values(), *s.queued.values()]
            return sorted(entries, key=lambda d: int(d.entry_id.rpartition("-")[2]))[:count]

    def dead_letters(self) -> list[DeadLetter]:
        with self._store.changed:
            return list(self._store.dead.values())

    def requeue(self, dead_id: str) -> PutStatus:
        s = self._store
        with s.changed:
            letter = s.dead.get(dead_id)
            if letter is None or not letter.payload:
                raise KeyError(f"no dead letter {dead_id} with a payload")
            if s.is_fenced(letter.header):
                return PutStatus.FENCED
            if s.limits is None or s.is_full(len(letter.payload), s.limits):
                return PutStatus.BUSY
            del s.dead[dead_id]
            s.count("dead_lettered", -1)
            s.enqueue(letter.header, letter.payload)
            return PutStatus.OK

    def report_learner(self, health: Mapping[str, float]) -> None:
        self._store.learner_health = {**health, "reported_s": time.time()}

    def health(self) -> Health:
        s = self._store
        with s.changed:
            oldest = min((d.enqueued_ms for e in (s.queued, s.pending) for d in e.values()), default=None)
            age_s = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
            return Health(time.time(), s.generation, s.head(), age_s, dict(s.learner_health), dict(s.actor_health))

    def ledger(self) -> Ledger:
        with self._store.changed:
            return self._store.ledger()

    def publish(self, weights: WeightSet) -> None:
        s = self._store
        blob = encode_weights(weights)
        with s.changed:
            self._check_generation(weights.generation)
            if weights.version <= s.head():
                if s.weights.get(weights.version) == blob:
                    return
                raise ValueError(f"weights {weights.version} are not newer than the published {s.head()}")
            s.weights[weights.version] = blob
            for version in sorted(s.weights)[: -self._config.weights_kept]:
                del s.weights[version]

    def head(self) -> int:
        with self._store.changed:
            return self._store.head()

    def fetch(self, known: str = "") -> WeightSet | None:
        with self._store.changed:
            blob = self._store.weights.get(self._store.head())
        return None if blob is None or manifest_digest(blob.manifest) == known else decode_weights(blob)

    def _reply(self, status: PutStatus) -> PutReply:
        retry_s = BUSY_RETRY_S if status is PutStatus.BUSY else 0.0
        return PutReply(status, retry_s, self._store.head(), self._store.counts.store)

    def _settle(self, entry_ids: Sequence[str], term: str) -> list[str]:
        if not entry_ids:
            return []
        self._next_turn()
        return self._store.settle(entry_ids, term)

    def _check_generation(self, generation: int) -> None:
        current = self._store.generation
        if generation > current:
            raise StoreReset(f"the store does not know generation {generation}: its newest is {current}")
        if generation < current or generation == 0:
            raise Fenced(f"generation {generation} is not open: the newest is {current}")

    def _next_turn(self) -> None:
        """Count a call of the consumer. If the store's count differs from this handle's, the store lost some calls."""
        self._check_generation(self._generation)
        if self._turn != self._store.counts.turn:
            raise StoreReset(f"the store is at turn {self._store.counts.turn}, the learner at {self._turn}")
        self._store.count("turn")
        self._turn += 1
