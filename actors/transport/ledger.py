"""`Ledger`: where every episode that was ever produced is now, exact at every instant."""

from __future__ import annotations

from dataclasses import dataclass, field


class LedgerError(AssertionError):
    """Episodes were lost or counted twice; the message holds both sides of the identity."""


@dataclass(frozen=True)
class ActorLedger:
    """Episodes of one incarnation of one actor, as of its last put or report."""

    produced: int = 0
    accepted: int = 0
    refused_fenced: int = 0
    dropped_backpressure: int = 0
    unsent: int = 0
    lost_with_actor: int = 0  # unsent when a later incarnation took over


@dataclass(frozen=True)
class Ledger:
    """Counts of episodes. `dead_lettered` falls when a letter is queued again, and only then."""

    accepted: int = 0
    trained: int = 0
    dropped_stale: int = 0
    fenced: int = 0
    dead_lettered: int = 0
    queued: int = 0
    pending: int = 0
    foreign: int = 0  # stream entries without a valid header, removed unread: outside the identity
    dead_letters_evicted: int = 0  # of `dead_lettered`, those no longer kept
    queued_bytes: int = 0
    dead_bytes: int = 0  # payload bytes that dead letters hold
    stream_entries: int = 0  # what the store itself says it holds, foreign entries included
    actors: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)  # by (actor, incarnation)

    def check(self) -> None:
        """Raise `LedgerError` unless accepted = trained + dropped_stale + fenced + dead_lettered + queued + pending,
        the store really holds what is queued and pending, and each actor's own identity holds."""
        settled = self.trained + self.dropped_stale + self.fenced + self.dead_lettered
        if self.accepted != settled + self.queued + self.pending:
            raise LedgerError(
                f"accepted {self.accepted} != {settled} settled + {self.queued} queued + {self.pending} pending"
            )
        if self.stream_entries < self.queued + self.pending:
            raise LedgerError(
                f"{self.stream_entries} entries in the stream, {self.queued} queued + {self.pending} pending"
            )
        if min(self.queued, self.pending, self.dead_lettered, self.queued_bytes, self.dead_bytes) < 0:
            raise LedgerError(f"negative count: {self}")
        if self.actors and sum(a.accepted for a in self.actors.values()) != self.accepted:
            raise LedgerError(f"accepted {self.accepted} is not the sum over actors")
        for (actor, incarnation), a in self.actors.items():
            known = a.accepted + a.refused_fenced + a.dropped_backpressure + a.unsent + a.lost_with_actor
            if a.produced != known:
                raise LedgerError(
                    f"actor {actor} incarnation {incarnation}: produced {a.produced} != {known} accounted for"
                )
