"""`Ledger`: exact counts of all episodes ever produced, by what became of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from actors.types.names import NAME

MAX_INTEGER = 2**53 - 1  # the largest integer that Lua's doubles represent exactly
RETIRED = -1  # stands for all older incarnations of an actor, which share one row
ROWS_KEPT = 3  # incarnations per actor with a row of their own; same as in `lua/incarnations.lua`
COUNT = re.compile(rb"-?\d{1,16}")
_NUMBER = r"(?:0|[1-9]\d{0,15})"
EPISODE_ID = re.compile(rf"{NAME}/{NAME}/{_NUMBER}/{_NUMBER}", re.ASCII)  # run/actor/incarnation/sequence


class LedgerError(AssertionError):
    """Episodes were lost or counted twice. The message shows both sides of the identity that does not hold."""


@dataclass(frozen=True)
class ActorLedger:
    """Counts of the episodes of one incarnation of an actor, as of its last put or report."""

    TERMS: ClassVar = ("accepted", "refused_fenced", "dropped_backpressure", "unsent", "lost_with_actor")
    """The terms that sum to `produced`."""

    produced: int = 0
    accepted: int = 0
    refused_fenced: int = 0
    dropped_backpressure: int = 0
    unsent: int = 0
    lost_with_actor: int = 0  # unsent when a later incarnation started
    next_sequence: int = field(default=0, compare=False)  # lower sequence numbers are duplicates

    def plus(self, other: ActorLedger) -> ActorLedger:
        """Add the other's counts, except for `next_sequence`, which is 0 in the result."""
        return ActorLedger(**{t: getattr(self, t) + getattr(other, t) for t in ("produced", *self.TERMS)})

    @property
    def gap(self) -> int:
        """Produced episodes that no term accounts for; 0 unless something is wrong."""
        return self.produced - sum(int(getattr(self, term)) for term in self.TERMS)


@dataclass(frozen=True)
class Ledger:
    """Counts of all episodes of a run. Settled terms never decrease, except that requeuing lowers `dead_lettered` and a
    rollback moves episodes from `trained` to `trained_then_lost`."""

    SETTLED: ClassVar = (
        "trained", "trained_then_lost", "dropped_stale", "fenced", "dead_lettered", "lost_with_store", "missing",
    )  # fmt: skip
    TERMS: ClassVar = (*SETTLED, "queued", "pending")
    """The terms that sum to `accepted`."""

    accepted: int = 0
    trained: int = 0
    trained_then_lost: int = 0  # trained on by updates that were later rolled back
    dropped_stale: int = 0
    fenced: int = 0
    dead_lettered: int = 0
    lost_with_store: int = 0  # accepted, then lost when the store came back empty or older
    missing: int = 0  # accepted, then removed from the queue by something other than Tamiyo
    queued: int = 0
    pending: int = 0
    foreign: int = 0  # stream entries without a valid header, removed; not part of the identity
    dead_letters_evicted: int = 0  # part of `dead_lettered`: letters no longer kept
    queued_bytes: int = 0
    dead_bytes: int = 0  # payload bytes of the dead letters that are kept
    stream_entries: int = 0  # the actual length of the stream, foreign entries included
    store: int = 0  # random id of the store's memory, 0 before its first generation
    turn: int = 0  # number of consumer calls that the store has executed
    unreadable: int = 0  # fields of the store's ledger that could not be parsed and were skipped
    actors: dict[tuple[str, int], ActorLedger] = field(default_factory=dict)
    """By (actor, incarnation) for the newest few incarnations; (actor, RETIRED) holds the sums of all older ones."""

    @property
    def settled(self) -> int:
        """Accepted episodes that left the queue."""
        return sum(int(getattr(self, term)) for term in self.SETTLED)

    @property
    def gap(self) -> int:
        """Accepted episodes that no term accounts for; 0 unless something is wrong."""
        return self.accepted - sum(int(getattr(self, term)) for term in self.TERMS)

    def check(self) -> None:
        """Raise `LedgerError` unless both identities hold: `accepted` is the sum of its terms, and so is `produced` of
        each actor. Also checks that the stream really holds the queued and pending entries."""
        if self.gap:
            raise LedgerError(
                f"accepted {self.accepted} != {self.settled} settled + {self.queued} queued + {self.pending} pending"
            )
        if self.stream_entries < self.queued + self.pending:
            raise LedgerError(
                f"{self.stream_entries} entries in the stream < {self.queued} queued + {self.pending} pending"
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
    def from_fields(cls, fields: Mapping[bytes, bytes], **known: int) -> Ledger:
        """Parse the store's `ledger` hash, see `lua/store.lua`; `known` are counts that it does not hold. Invalid
        fields are counted as `unreadable`."""
        totals: dict[str, int] = {}
        actors: dict[tuple[str, int], dict[str, int]] = {}
        unreadable = known.pop("unreadable", 0)
        for field_name, value in fields.items():
            name, count = field_name.decode(errors="replace"), int(value) if COUNT.fullmatch(value) else None
            found = ACTOR_FIELD.fullmatch(name)
            if count is not None and found:
                incarnation = RETIRED if found["incarnation"] == "retired" else int(found["incarnation"])
                actors.setdefault((found["actor"], incarnation), {})[found["term"]] = count
            elif count is not None and name in STORED:
                totals[name] = count
            elif not INCARNATION_FIELD.fullmatch(name):
                unreadable += 1
        rows = {key: ActorLedger(**terms) for key, terms in actors.items()}
        return cls(actors=rows, unreadable=unreadable, **totals, **known)

    def to_fields(self) -> list[str | int]:
        """Alternating fields and values of the store's `ledger` hash."""
        flat: list[str | int] = [part for name in sorted(STORED) for part in (name, getattr(self, name))]
        for (actor, incarnation), row in self.actors.items():
            prefix = f"actor:{actor}/{'retired' if incarnation == RETIRED else incarnation}"
            flat += (part for term, n in vars(row).items() for part in (f"{prefix}:{term}", n))
        for actor, numbers in self.listed().items():
            flat += (f"actor:{actor}:incarnation", numbers[-1], f"actor:{actor}:listed", " ".join(map(str, numbers)))
        return flat

    def listed(self) -> dict[str, list[int]]:
        """For each actor, the incarnations with rows of their own, in ascending order."""
        found: dict[str, list[int]] = {}
        for actor, incarnation in sorted(self.actors):
            if incarnation != RETIRED:
                found.setdefault(actor, []).append(incarnation)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON-compatible dict."""
        return asdict(self) | {"actors": {f"{actor}/{inc}": asdict(a) for (actor, inc), a in self.actors.items()}}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Ledger:
        """Rebuild from `to_dict`. Raises `ValueError` if a count is not an integer."""
        counts = {k: v for k, v in fields.items() if k != "actors"}
        actors = {}
        for key, terms in fields.get("actors", {}).items():
            actor, _, incarnation = key.rpartition("/")
            actors[actor, int(incarnation)] = ActorLedger(**terms)
            counts |= {f"{key}:{term}": n for term, n in terms.items()}
        if wrong := [term for term, n in counts.items() if type(n) is not int]:
            raise ValueError(f"the ledger's {wrong[0]} is {counts[wrong[0]]!r}, not an integer")
        return cls(**{k: v for k, v in fields.items() if k != "actors"}, actors=actors)


STORED = {f.name for f in fields(Ledger)} - {"actors", "stream_entries", "unreadable", "store", "turn"}
MAX_FIELDS = 50_000  # in a hash to which actors may write, from which on its rows are not read
_TERM = "|".join(f.name for f in fields(ActorLedger))
ACTOR_FIELD = re.compile(rf"actor:(?P<actor>{NAME})/(?P<incarnation>\d{{1,16}}|retired):(?P<term>{_TERM})", re.ASCII)
INCARNATION_FIELD = re.compile(rf"actor:{NAME}:(incarnation|listed)")


@dataclass(frozen=True)
class LedgerMemory:
    """The part of a checkpoint that describes the store. It shows whether the store came back empty or older, and from
    which counts the ledger then continues."""

    ledger: Ledger
    applied: tuple[str, ...]  # ids of episodes that were trained on and that `ledger` does not count as trained yet

    def after_loss(self) -> Ledger:
        """The ledger with which an empty store continues: queued and pending episodes are counted as lost."""
        old, actors, unseen = self.ledger, dict(self.ledger.actors), 0
        listed = old.listed()
        for episode_id in self.applied:
            _, actor, incarnation, sequence = episode_id.split("/")
            if (actor, int(incarnation)) not in actors and int(incarnation) < listed.get(actor, [0])[0]:
                continue  # retired: its episodes are counted in the shared row
            row = actors.get((actor, int(incarnation)), ActorLedger())
            if int(sequence) >= row.next_sequence:  # accepted after the ledger was read
                unseen += 1
                source = {"unsent": row.unsent - 1} if row.unsent else {"produced": row.produced + 1}
                row = replace(row, accepted=row.accepted + 1, next_sequence=int(sequence) + 1, **source)
            actors[actor, int(incarnation)] = row
        unsettled = old.queued + old.pending + unseen - len(self.applied)
        dead_lettered = old.dead_lettered + min(0, unsettled)  # negative if a letter was queued again and trained
        return replace(
            old,
            accepted=old.accepted + unseen,
            trained=old.trained + len(self.applied),
            lost_with_store=old.lost_with_store + max(0, unsettled),
            dead_lettered=dead_lettered,
            dead_letters_evicted=dead_lettered,
            actors=actors,
            **dict.fromkeys(("queued", "pending", "queued_bytes", "dead_bytes", "stream_entries"), 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON-compatible dict."""
        return {"ledger": self.ledger.to_dict(), "applied": list(self.applied)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> LedgerMemory:
        """Rebuild from `to_dict`. Raises `ValueError` if a value has the wrong type."""
        return cls(Ledger.from_dict(fields["ledger"]), episode_ids(fields["applied"]))


def episode_ids(found: Any) -> tuple[str, ...]:
    """Return `found`, parsed from JSON, as episode ids. Raises `ValueError` if it is not a list of them."""
    if not isinstance(found, list) or not all(isinstance(i, str) and EPISODE_ID.fullmatch(i) for i in found):
        raise ValueError("not a list of episode ids")
    return tuple(found)
