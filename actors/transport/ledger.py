"""`Ledger`: where every episode that was ever produced is now, exact at every instant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from actors.types.names import NAME

LARGEST_INTEGER = 2**53 - 1  # stores compare numbers as doubles
RETIRED = -1  # in place of an incarnation's number: an actor's older ones, which share a row
ROWS_KEPT = 3  # of the newest incarnations of an actor, as `lua/incarnations.lua` has it
COUNT = re.compile(rb"-?\d{1,16}")
ID = re.compile(r"[^/]+/[^/]+/\d{1,16}/\d{1,16}", re.ASCII)  # run/actor/incarnation/sequence


class LedgerError(AssertionError):
    """Episodes were lost or counted twice; the message holds both sides of the identity."""


@dataclass(frozen=True)
class ActorLedger:
    """Episodes of one incarnation of one actor, as of its last put or report."""

    TERMS: ClassVar[tuple[str, ...]] = (
        "accepted",
        "refused_fenced",
        "dropped_backpressure",
        "unsent",
        "lost_with_actor",
    )
    """Where produced episodes are: their sum is `produced`."""

    produced: int = 0
    accepted: int = 0
    refused_fenced: int = 0
    dropped_backpressure: int = 0
    unsent: int = 0
    lost_with_actor: int = 0  # unsent when a later incarnation took over
    next_sequence: int = field(default=0, compare=False)  # the least that is no duplicate

    def plus(self, other: ActorLedger, times: int = 1) -> ActorLedger:
        """The sums; without `next_sequence`, which has none."""
        terms = ("produced", *self.TERMS)
        return ActorLedger(**{term: getattr(self, term) + times * getattr(other, term) for term in terms})

    @property
    def gap(self) -> int:
        """Produced episodes without account; 0 unless something is wrong."""
        return self.produced - sum(int(getattr(self, term)) for term in self.TERMS)


@dataclass(frozen=True)
class Ledger:
    """Counts of episodes. `dead_lettered` falls when a letter is queued again, and only then."""

    SETTLED: ClassVar[tuple[str, ...]] = (
        "trained",
        "trained_then_lost",
        "dropped_stale",
        "fenced",
        "dead_lettered",
        "lost_with_store",
    )
    TERMS: ClassVar[tuple[str, ...]] = (*SETTLED, "queued", "pending")
    """Where accepted episodes are: their sum is `accepted`."""

    accepted: int = 0
    trained: int = 0
    trained_then_lost: int = 0  # acknowledged for updates that were given up
    dropped_stale: int = 0
    fenced: int = 0
    dead_lettered: int = 0
    lost_with_store: int = 0  # accepted by a store that came back empty or older
    queued: int = 0
    pending: int = 0
    foreign: int = 0  # stream entries without a valid header, removed unread: outside the identity
    dead_letters_evicted: int = 0  # of `dead_lettered`, those no longer kept
    queued_bytes: int = 0
    dead_bytes: int = 0  # payload bytes that dead letters hold
    stream_entries: int = 0  # what the store itself says it holds, foreign entries included
    store: int = 0  # id of the store's memory, 0 before its first generation
    turn: int = 0  # calls of consumers that the store remembers
    unreadable: int = 0  # fields of the store's ledger that hold no count, left out
    actors: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)
    """By (actor, incarnation), of the newest few; by (actor, RETIRED) those before them together."""

    @property
    def settled(self) -> int:
        return sum(int(getattr(self, term)) for term in self.SETTLED)

    @property
    def gap(self) -> int:
        """Accepted episodes without account; 0 unless something is wrong."""
        return self.accepted - sum(int(getattr(self, term)) for term in self.TERMS)

    def check(self) -> None:
        """Raise `LedgerError` unless `accepted` is the sum of its terms, the store really holds what is queued and
        pending, and each actor's own identity holds."""
        if self.gap:
            raise LedgerError(
                f"accepted {self.accepted} != {self.settled} settled + {self.queued} queued + {self.pending} pending"
            )
        if self.stream_entries < self.queued + self.pending:
            raise LedgerError(
                f"{self.stream_entries} entries in the stream, {self.queued} queued + {self.pending} pending"
            )
        if min(v for k, v in vars(self).items() if k != "actors") < 0:
            raise LedgerError(f"negative count: {self}")
        if self.actors and sum(a.accepted for a in self.actors.values()) != self.accepted:
            raise LedgerError(f"accepted {self.accepted} is not the sum over actors")
        for (actor, incarnation), a in self.actors.items():
            if a.gap:
                raise LedgerError(
                    f"actor {actor} incarnation {incarnation}: produced {a.produced} != "
                    f"{a.produced - a.gap} accounted for"
                )

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes], stream_entries: int) -> Ledger:
        """As the store's hash has it (see `lua/store.lua`). Fields that hold no count are left out and counted."""
        totals: dict[str, int] = {}
        actors: dict[tuple[str, int], dict[str, int]] = {}
        unreadable = 0
        for field_name, value in fields.items():
            name, count = field_name.decode(errors="replace"), int(value) if COUNT.fullmatch(value) else None
            found = OF_ACTOR.fullmatch(name)
            if count is not None and found:
                incarnation = RETIRED if found["incarnation"] == "retired" else int(found["incarnation"])
                actors.setdefault((found["actor"], incarnation), {})[found["term"]] = count
            elif count is not None and name in STORED:
                totals[name] = count
            elif not LIVES.fullmatch(name):
                unreadable += 1
        rows = {who: ActorLedger(**terms) for who, terms in actors.items()}
        return cls(stream_entries=stream_entries, actors=rows, unreadable=unreadable, **totals)

    def to_fields(self) -> list[str | int]:
        """Fields and values of the store's hash, one after the other; without `store`, which is that store's own."""
        flat: list[str | int] = [part for name in STORED - {"store"} for part in (name, getattr(self, name))]
        for (actor, incarnation), row in self.actors.items():
            who = f"actor:{actor}/{'retired' if incarnation == RETIRED else incarnation}"
            flat += (part for term, n in vars(row).items() for part in (f"{who}:{term}", n))
        for actor, numbers in self.listed().items():
            flat += (f"actor:{actor}:incarnation", numbers[-1], f"actor:{actor}:listed", " ".join(map(str, numbers)))
        return flat

    def listed(self) -> dict[str, list[int]]:
        """The incarnations of each actor that have rows of their own, rising."""
        found: dict[str, list[int]] = {}
        for actor, incarnation in sorted(self.actors):
            if incarnation != RETIRED:
                found.setdefault(actor, []).append(incarnation)
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `from_dict` reads it back, and raises `ValueError` for anything else."""
        return asdict(self) | {"actors": {f"{actor}/{inc}": asdict(a) for (actor, inc), a in self.actors.items()}}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Ledger:
        counts = {k: v for k, v in fields.items() if k != "actors"}
        actors = {}
        for who, terms in fields.get("actors", {}).items():
            actor, _, incarnation = who.rpartition("/")
            actors[actor, int(incarnation)] = ActorLedger(**terms)
            counts |= {f"{who}:{term}": n for term, n in terms.items()}
        if wrong := [term for term, n in counts.items() if type(n) is not int]:
            raise ValueError(f"a ledger's {wrong[0]} is {counts[wrong[0]]!r}, not a count")
        return cls(**{k: v for k, v in fields.items() if k != "actors"}, actors=actors)


STORED = {f.name for f in fields(Ledger)} - {"actors", "stream_entries", "unreadable"}
_TERM = "|".join(f.name for f in fields(ActorLedger))
OF_ACTOR = re.compile(rf"actor:(?P<actor>{NAME})/(?P<incarnation>\d{{1,16}}|retired):(?P<term>{_TERM})", re.ASCII)
LIVES = re.compile(rf"actor:{NAME}:(incarnation|listed)")


@dataclass(frozen=True)
class LedgerMemory:
    """What a checkpoint remembers of the store, so that one which came back empty or older is known for it."""

    ledger: Ledger
    applied: tuple[str, ...]  # ids of episodes that the checkpoint has trained on and the ledger does not count so yet

    def after_loss(self) -> Ledger:
        """The ledger to go on with, in a store that holds nothing: what was on its way is lost."""
        old, actors, unheard = self.ledger, dict(self.ledger.actors), 0
        listed = old.listed()
        for episode_id in self.applied:
            _, actor, incarnation, sequence = episode_id.split("/")
            if (actor, int(incarnation)) not in actors and int(incarnation) < listed.get(actor, [0])[0]:
                continue  # retired: what it put was counted before
            a = actors.get((actor, int(incarnation)), ActorLedger())
            if int(sequence) >= a.next_sequence:  # accepted since the ledger was looked at
                unheard += 1
                source = {"unsent": a.unsent - 1} if a.unsent else {"produced": a.produced + 1}
                a = replace(a, accepted=a.accepted + 1, next_sequence=int(sequence) + 1, **source)
            actors[actor, int(incarnation)] = a
        on_way = old.queued + old.pending + unheard - len(self.applied)
        dead_lettered = old.dead_lettered + min(0, on_way)  # a letter may have been queued again and trained
        return replace(
            old,
            accepted=old.accepted + unheard,
            trained=old.trained + len(self.applied),
            lost_with_store=old.lost_with_store + max(0, on_way),
            dead_lettered=dead_lettered,
            dead_letters_evicted=dead_lettered,
            queued=0,
            pending=0,
            queued_bytes=0,
            dead_bytes=0,
            stream_entries=0,
            actors=actors,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `from_dict` reads it back, and raises `ValueError` for anything else."""
        return {"ledger": self.ledger.to_dict(), "applied": list(self.applied)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> LedgerMemory:
        return cls(Ledger.from_dict(fields["ledger"]), episode_ids(fields["applied"]))


def episode_ids(found: Any) -> tuple[str, ...]:
    """`found`, as read from a file, where it is a list of ids; raises `ValueError` where it is not."""
    if not isinstance(found, list) or not all(isinstance(i, str) and ID.fullmatch(i) for i in found):
        raise ValueError("not a list of episode ids")
    return tuple(found)
