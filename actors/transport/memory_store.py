"""`MemoryStore`: what the transport in memory holds, in place of a server's keys."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from actors.codec import WeightBlob
from actors.transport.base import DeadLetter, Delivery, Malformed
from actors.transport.health import is_ahead
from actors.transport.ledger import RETIRED, ROWS_KEPT, ActorLedger, Ledger


@dataclass
class MemoryStore:
    """What the handles of one run share; touched only by `MemoryTransport`, under `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    queued: dict[str, Delivery] = field(default_factory=dict)  # by entry id, oldest first
    pending: dict[str, Delivery] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    dead: dict[str, DeadLetter] = field(default_factory=dict)  # by dead id, oldest first
    weights: dict[int, WeightBlob] = field(default_factory=dict)  # by version
    restored_versions: dict[int, int] = field(default_factory=dict)  # generation -> version
    made: dict[int, int] = field(default_factory=dict)  # version -> episodes acknowledged whose update made it
    generation: int = 0
    next_version: int = 0  # the least that this generation may publish
    ids: int = 0
    counts: Ledger = field(default_factory=Ledger)  # settled terms only; the rest is what the fields above hold
    actors: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)
    retired: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)  # rows that are part of a shared one
    latest: dict[str, int] = field(default_factory=dict)  # actor -> incarnation
    learner: dict[str, float] = field(default_factory=dict)  # how it fares
    fares: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)

    def enter(self, actor: str, incarnation: int) -> None:
        """Know this incarnation; what the one before it had not sent is lost with it."""
        latest = self.latest.get(actor)
        if is_ahead(incarnation, latest or 0):
            raise Malformed(f"incarnation {incarnation} is more than a day ahead of the store's clock")
        self.restore(actor, incarnation)
        self.actors.setdefault((actor, incarnation), ActorLedger())
        if latest is not None and incarnation <= latest:
            return
        self.latest[actor] = incarnation
        if latest is not None:
            old = self.actors[actor, latest]
            self.actors[actor, latest] = replace(old, unsent=0, lost_with_actor=old.lost_with_actor + old.unsent)
            self.fares.pop((actor, latest), None)
        self.retire_the_old(actor)

    def retire_the_old(self, actor: str) -> None:
        """Let the newest few incarnations keep rows of their own."""
        for number in sorted(n for name, n in self.actors if name == actor and n != RETIRED)[:-ROWS_KEPT]:
            self.retired[actor, number] = row = self.actors.pop((actor, number))
            self.actors[actor, RETIRED] = self.actors.get((actor, RETIRED), ActorLedger()).plus(row)

    def restore(self, actor: str, incarnation: int) -> None:
        """Give an incarnation that was retired its own row again."""
        if row := self.retired.pop((actor, incarnation), None):
            self.actors[actor, RETIRED] = self.actors[actor, RETIRED].plus(row, -1)
            self.actors[actor, incarnation] = row
