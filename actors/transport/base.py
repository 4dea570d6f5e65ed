"""What carries episodes to the learner and weights back: three small Protocols and their values.

Actors put and report, the learner takes and acknowledges, weights are published and fetched. A call that is
repeated because its connection broke changes nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from actors.transport.health import Health
from actors.transport.ledger import LARGEST_INTEGER, ActorLedger, Ledger, LedgerMemory
from actors.types.episode import Episode, InvalidEpisode
from actors.types.names import NAME_RULE, is_name
from actors.types.weights import WeightSet

BUSY_RETRY_S = 0.25


class Fenced(RuntimeError):
    """This consumer's generation is not the open one: another learner took over. Stop."""


class Unreachable(ConnectionError):
    """The store does not answer, retries included. The call may or may not have taken effect: an actor repeats it
    later, a learner opens a generation anew."""


class NoFunctions(Unreachable):
    """The store has yet to be prepared, by a learner that may load functions where this user may not."""


class OutOfMemory(Unreachable):
    """The store reached the limit of its memory; nothing was changed. What frees memory still works."""


class StoreReset(Unreachable):
    """The store came back empty or older than this consumer knew it: open a generation anew."""


class Malformed(ValueError):
    """The store refused values that no part of Tamiyo sends, and changed nothing."""


class PutStatus(StrEnum):
    OK = "OK"
    DUPLICATE = "DUPLICATE"  # accepted before: as good as OK
    FENCED = "FENCED"  # of a lineage that was given up: discard it
    BUSY = "BUSY"  # the queue is full, or waits for its learner: put it again later


class DropReason(StrEnum):
    STALE = "dropped_stale"
    FENCED = "fenced"


@dataclass(frozen=True)
class EpisodeHeader:
    """What the queue knows of an episode without decoding it."""

    episode_id: str  # run/actor/incarnation/sequence
    actor: str
    incarnation: int
    sequence: int
    generation: int
    oldest_version: int
    newest_version: int

    def __post_init__(self) -> None:
        """Raises `InvalidEpisode` for a header that the store would refuse."""
        run, _, rest = self.episode_id.partition("/")
        if rest != f"{self.actor}/{self.incarnation}/{self.sequence}":
            raise InvalidEpisode(
                f"episode id {self.episode_id!r} is not run/{self.actor}/{self.incarnation}/{self.sequence}"
            )
        for name in (run, self.actor):
            if not is_name(name):
                raise InvalidEpisode(f"episode id {self.episode_id!r}: {name!r} is no name; give {NAME_RULE}")
        if not (0 <= self.incarnation <= LARGEST_INTEGER and 0 <= self.sequence <= LARGEST_INTEGER):
            raise InvalidEpisode(
                f"episode id {self.episode_id!r}: incarnation and sequence are integers from 0 to 2^53 - 1"
            )
        if max(abs(v) for v in (self.generation, self.oldest_version, self.newest_version)) > LARGEST_INTEGER:
            raise InvalidEpisode(f"episode {self.episode_id!r}: generation and versions lie within 2^53 - 1")

    @classmethod
    def from_episode(cls, episode: Episode) -> EpisodeHeader:
        """Raises `InvalidEpisode` when the id is not run/actor/incarnation/sequence, the last two integers."""
        parts = episode.episode_id.split("/")
        if len(parts) != 4 or not all(parts) or not all(p.isascii() and p.isdigit() for p in parts[2:]):
            raise InvalidEpisode(f"episode id {episode.episode_id!r} is not run/actor/incarnation/sequence")
        oldest, newest = episode.oldest_version, int(episode.policy_version.max())
        return cls(episode.episode_id, parts[1], int(parts[2]), int(parts[3]), episode.generation, oldest, newest)


@dataclass(frozen=True)
class NewIncarnation:
    number: int
    is_first: bool  # no other of this actor has been begun, as far as the store knows


@dataclass(frozen=True)
class PutReply:
    status: PutStatus
    retry_s: float  # when to put again; 0 unless BUSY
    head_version: int  # newest published weights, -1 = none


@dataclass(frozen=True)
class Delivery:
    """One entry handed to the consumer; it stays pending until acknowledged, dropped or dead-lettered."""

    entry_id: str
    header: EpisodeHeader
    payload: bytes  # as put; empty when the store lost it, which no decoder accepts
    enqueued_ms: int  # since 1970, by the store's clock
    head_version: int  # newest published weights when it was put, -1 = none


@dataclass(frozen=True)
class DeadLetter:
    dead_id: str
    header: EpisodeHeader
    payload: bytes  # empty when it was oversize
    reason: str


@dataclass(frozen=True)
class Generation:
    """`number` fences older learners; `next_version` is the first version this one may publish."""

    number: int
    next_version: int
    store: int = field(default=0, compare=False)  # id of the memory that it was opened in
    turn: int = field(default=0, compare=False)  # of the ledger there, then


class Producer(Protocol):
    """An actor's side."""

    def new_incarnation(self, actor: str) -> NewIncarnation:
        """Begin a life of this actor: its number is beyond those of all others, and no other call gets the same."""

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        """Offer one encoded episode. Sequences rise; an oversize payload is accepted into the dead letters."""

    def put_all(self, episodes: Sequence[tuple[EpisodeHeader, bytes]]) -> list[PutReply]:
        """Offer several of one incarnation, in one round trip; ends with the first BUSY, so that none overtakes it.

        Raises `Malformed`, with none of them put, when they are of several incarnations.
        """

    def report(self, actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float]) -> None:
        """Heartbeat with this incarnation's totals, as it knows them, and how it fares.

        What earlier incarnations had unsent counts as lost with them; what the actor knows to be accepted and the
        store does not, as lost with the store. Raises `Malformed`, and changes nothing, for what is no report.
        """

    def ledger(self) -> Ledger: ...


class Consumer(Protocol):
    """The learner's side. Verbs raise `Fenced` before `open_generation` or after somebody else's, and `StoreReset` when
    the store does not remember this consumer's last call."""

    @property
    def max_episode_bytes(self) -> int:
        """The largest payload that the queue accepts."""

    def current_generation(self) -> int:
        """The newest generation that was claimed or opened here, 0 = none. Needs no generation."""

    def claim_generation(self, number: int) -> None:
        """Refuse every older generation from here on, and change nothing else. A learner claims before it loads its
        checkpoint, so that nothing is acknowledged any more that this checkpoint might lack. Raises `Fenced` where
        `number` or a later one was claimed or opened before."""

    def open_generation(
        self,
        restored_version: int,
        consumer: str,
        floor: Generation | None = None,
        memory: LedgerMemory | None = None,
        claimed: int = 0,
    ) -> Generation:
        """Take over the queue, pending entries included, having restored version `restored_version` (-1 = none).

        With `claimed`, a number that this consumer alone uses, that generation is opened; raises `Fenced` where a later
        one was claimed or opened since. Without, it is the next number.

        Waiting episodes of an older generation that used a later version than that are dropped as fenced, and those
        acknowledged for a later one count as trained, then lost. A store that is emptier or older than `memory` is
        cleared and goes on from there. `floor` is the generation of the checkpoint: numbers, and in a store that lost
        its own also versions, stay beyond it.
        """

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        """At most `count` entries, oldest first; waits up to `timeout_s` for the first one."""

    def pending(self) -> list[Delivery]:
        """All entries taken (by this generation or an earlier one) and not settled."""

    def begin_attempt(self, entry_id: str) -> int:
        """Count a probe of a pending entry and return how many began and did not end; 0 when it is not ours."""

    def end_attempt(self, entry_id: str) -> None:
        """The probe was survived: its attempts are forgotten."""

    def ack(self, entry_ids: Sequence[str], made_version: int = -1, durable_version: int = -1) -> list[str]:
        """Settle entries as trained and delete them; returns those that were pending here.

        The update that used them produced `made_version`. If a later generation restores an older version, they become
        `trained_then_lost`, unless an acknowledgement has declared their version durable: versions up to
        `durable_version` are in a checkpoint that is never rolled back.
        """

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        """Settle entries untrained and delete them; returns those that were pending here."""

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        """Set a pending entry aside with its payload; False when it is not ours."""

    def dead_letters(self) -> list[DeadLetter]:
        """Those kept, oldest first; entries that are no letters are left out. Needs no generation."""

    def requeue(self, dead_id: str) -> PutStatus:
        """Queue a dead letter again: OK, or FENCED or BUSY, which leave it. Needs no generation.

        Raises `KeyError` when there is no such letter or its payload was not kept.
        """

    def report_learner(self, health: Mapping[str, float]) -> None:
        """How the learner fares, for whoever looks. Needs no generation."""

    def health(self) -> Health:
        """How all fare. Needs no generation."""

    def ledger(self) -> Ledger: ...


class WeightStore(Protocol):
    """Published weights; a few versions are kept."""

    def publish(self, weights: WeightSet) -> None:
        """Raises `Fenced` unless their generation is open, `ValueError` unless the version is newer than the head."""

    def head(self) -> int:
        """Newest published version, -1 = none."""

    def fetch(self, newer_than: int) -> WeightSet | None:
        """The newest weights if newer than that. Raises `actors.codec.InvalidWeights` when they are damaged or lost."""


class Transport(Producer, Consumer, WeightStore, Protocol):
    """All three sides of one store."""

    def close(self) -> None: ...
