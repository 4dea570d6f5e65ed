"""`AckTracker`: tracks which episodes were trained on, and which of them the store counts as trained."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from actors.transport.base import Generation, StoreReset, Unreachable
from actors.transport.ledger import Ledger, LedgerMemory
from actors.transport.redis import Transport
from learner.intake import TakenEpisode


class AckTracker:
    """Acknowledges trained episodes, and keeps the state of the store that the next checkpoint must record."""

    def __init__(self, consumer: Transport, consumed: tuple[str, ...], memory: LedgerMemory | None) -> None:
        self.consumer = consumer
        self.consumed = consumed  # ids whose acknowledgement may be unknown to the store
        self._unacknowledged: list[str] = []  # entry ids
        self._ledger: Ledger | None = memory.ledger if memory else None
        self._store = memory.ledger.store if memory else 0  # whose ledger may be looked at
        self._turn = memory.ledger.turn if memory else 0  # of the last look, or of the consumer's last call
        self._applied: tuple[str, ...] = memory.applied if memory else ()  # ids, since the ledger was looked at

    def open(self, restored_version: int, floor: Generation, claimed: int) -> Generation:
        """Take over the queue in the claimed generation. Afterwards, its pending entries must be examined again."""
        self._unacknowledged = []
        generation = self.consumer.open_generation(restored_version, "learner", floor, self.memory, claimed)
        self._store, self._turn = generation.store, generation.turn
        return generation

    def applied(self, taken: Sequence[TakenEpisode]) -> None:
        """Record that an update used these episodes."""
        ids = tuple(t.episode.episode_id for t in taken)
        self.consumed, self._applied = (*self.consumed, *ids), (*self._applied, *ids)
        self._unacknowledged += [t.entry_id for t in taken]

    def acknowledge(self) -> None:
        """Acknowledge all episodes used so far, whether or not a checkpoint holds them."""
        if self._unacknowledged:
            self.consumer.ack(self._unacknowledged)
        self._unacknowledged = []

    def revoke(self, trained: int) -> int:
        """Make the store count `trained` episodes, those of the lineage that is continued, and the others as trained
        and then lost. Returns how many those are."""
        abandoned = self.consumer.ledger().trained - trained  # negative while some of `consumed` are still queued
        if abandoned > 0:
            self.consumer.revoke(abandoned)
        return max(0, abandoned)

    def opened(self) -> LedgerMemory:
        """Return the ledger of the opened store, with all of `consumed` acknowledged. Raises `Unreachable`, also if the
        store has lost its data since it was opened."""
        if not self._look_at(self.consumer.ledger()) or self.memory is None:
            raise StoreReset("the store has lost its memory since it was opened")
        return self.memory

    def look(self) -> None:
        """Read the ledger before a checkpoint is written. If the store is unreachable, or has lost its data and was not
        reopened yet, keep the last known ledger: an empty one would report no losses."""
        with suppress(Unreachable):
            self._look_at(self.consumer.ledger())

    def _look_at(self, ledger: Ledger) -> bool:
        self._turn = max(self._turn, self.consumer.turn)
        if ledger.store != self._store or ledger.turn < self._turn:
            return False
        self._ledger, self._turn = ledger, ledger.turn
        self._applied = self.consumed[len(self.consumed) - len(self._unacknowledged) :]
        return True

    @property
    def memory(self) -> LedgerMemory | None:
        """The ledger as it was last seen, with the turn of the consumer's last call: a store that forgot this call may
        offer its episodes again."""
        if self._ledger is None:
            return None
        return LedgerMemory(replace(self._ledger, turn=max(self._turn, self.consumer.turn)), self._applied)

    def durable(self) -> None:
        """Acknowledge the episodes in the last checkpoint, which is on disk."""
        acknowledged = len(self._unacknowledged)
        self.acknowledge()
        # The next checkpoint must still name these, in case the process ends between writing it and acknowledging.
        if acknowledged:
            self.consumed = self.consumed[-acknowledged:]
