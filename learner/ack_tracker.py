"""`AckTracker`: tracks which episodes were trained on, and which of them the store counts as trained."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from actors.transport.base import Consumer, Generation, StoreReset, Unreachable
from actors.transport.ledger import Ledger, LedgerMemory
from learner.config import LearnerConfig
from learner.intake import TakenEpisode


class AckTracker:
    """Acknowledges trained episodes, and keeps the state of the store that the next checkpoint must record."""

    def __init__(
        self, consumer: Consumer, config: LearnerConfig, consumed: tuple[str, ...], memory: LedgerMemory | None
    ) -> None:
        self.consumer, self._at_once = consumer, config.ack == "after_step"
        self.consumed = consumed  # ids whose acknowledgement may be unknown to the store
        self._unacknowledged: list[str] = []  # entry ids
        self._ledger: Ledger | None = memory.ledger if memory else None
        self._store = (memory.ledger.store, memory.ledger.turn) if memory else (0, 0)  # whose ledger may be looked at
        self._applied: tuple[str, ...] = memory.applied if memory else ()  # ids, since the ledger was looked at
        self._kept: deque[int] = deque(maxlen=config.checkpoints_kept)  # versions of sound checkpoints

    def open(self, restored_version: int, floor: Generation, claimed: int) -> Generation:
        """Take over the queue in the claimed generation. Afterwards, its pending entries must be examined again."""
        self._unacknowledged = []
        generation = self.consumer.open_generation(restored_version, "learner", floor, self.memory, claimed)
        self._store = (generation.store, generation.turn)
        return generation

    def applied(self, taken: Sequence[TakenEpisode]) -> None:
        """Record that an update used these episodes."""
        ids = tuple(t.episode.episode_id for t in taken)
        self.consumed, self._applied = (*self.consumed, *ids), (*self._applied, *ids)
        self._unacknowledged += [t.entry_id for t in taken]

    def acknowledge(self, version: int) -> None:
        """Acknowledge all episodes used so far as trained for `version`, without a checkpoint. A rollback to an earlier
        version loses these episodes."""
        if self._unacknowledged:
            oldest_kept = self._kept[0] if len(self._kept) == self._kept.maxlen else -1
            self.consumer.ack(self._unacknowledged, version, oldest_kept)
        self._unacknowledged = []

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
        store, turn = self._store
        if ledger.store != store or ledger.turn < turn:
            return False
        self._ledger, self._store = ledger, (store, ledger.turn)
        self._applied = self.consumed[len(self.consumed) - len(self._unacknowledged) :]
        return True

    @property
    def memory(self) -> LedgerMemory | None:
        return None if self._ledger is None else LedgerMemory(self._ledger, self._applied)

    def durable(self, version: int, sound: bool) -> None:
        """Acknowledge the episodes in the checkpoint of `version`, which is on disk. `sound` tells whether its
        gradients were finite."""
        if sound:
            self._kept.append(version)
        acknowledged = len(self._unacknowledged)
        self.acknowledge(version)
        # The next checkpoint must still name these, in case the process ends between writing it and acknowledging.
        if acknowledged or self._at_once:
            self.consumed = self.consumed[len(self.consumed) - acknowledged :]
