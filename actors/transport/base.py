"""The transport's interface: three small Protocols (`Producer`, `Consumer`, `WeightStore`), their values and errors.

Actors put episodes and report; the learner takes and settles episodes and publishes weights; actors fetch the weights.
All calls are idempotent under retries: repeating one whose reply was lost changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from actors.transport.health import Health
from actors.transport.ledger import EPISODE_ID, MAX_INTEGER, ActorLedger, Ledger, LedgerMemory
from actors.types.episode import Episode, InvalidEpisode
from actors.types.names import NAME_RULE, is_name
from actors.types.weights import WeightSet

BUSY_RETRY_S = 0.25


class Fenced(RuntimeError):
    """The consumer's generation is no longer the current one, because another learner took over. The consumer must
    stop."""


class Unreachable(ConnectionError):
    """The store did not answer, retries included. The call may or may not have taken effect: actors repeat it later,
    learners open a new generation."""


class LoginRefused(Unreachable):
    """The store refuses the password, which may have been renewed there and not here yet. After a minute of that, calls
    raise `UserError` instead."""


class NoFunctions(Unreachable):
    """The store lacks Tamiyo's functions and this user may not load them. The learner loads them when it connects."""


class OutOfMemory(Unreachable):
    """The store reached its memory limit and changed nothing. Calls that free memory still work."""


class StoreReset(Unreachable):
    """The store came back empty or older than the state this consumer last saw. Open a new generation."""


class Miscounted(RuntimeError):
    """Store and actor disagree about which episodes were accepted, although the store has lost nothing. This is a
    defect, or somebody else uses the same incarnation."""


class Malformed(ValueError):
    """The store rejected values that no version of Tamiyo sends, and changed nothing."""


class PutStatus(StrEnum):
    OK = "OK"
    DUPLICATE = "DUPLICATE"  # accepted before, by a call whose reply was lost
    FENCED = "FENCED"  # from weights that were rolled back: discard the episode
    BUSY = "BUSY"  # the queue is full, or its learner has not opened it yet: put the episode again later


class DropReason(StrEnum):
    """Ledger terms under which the learner drops episodes untrained."""

    STALE = "dropped_stale"
    FENCED = "fenced"


@dataclass(frozen=True)
class EpisodeHeader:
    """The metadata that the queue needs without decoding the episode."""

    episode_id: str  # run/actor/incarnation/sequence
    actor: str
    incarnation: int
    sequence: int
    generation: int
    oldest_version: int  # of the weights that acted
    newest_version: int

    def __post_init__(self) -> None:
        """Raise `InvalidEpisode` for a header that the store would reject."""
        run, _, rest = self.episode_id.partition("/")
        if rest != f"{self.actor}/{self.incarnation}/{self.sequence}":
            raise InvalidEpisode(
                f"episode id {self.episode_id!r} is not run/{self.actor}/{self.incarnation}/{self.sequence}"
            )
        for name in (run, self.actor):
            if not is_name(name):
                raise InvalidEpisode(f"episode id {self.episode_id!r}: {name!r} is not a valid name; use {NAME_RULE}")
        if not (0 <= self.incarnation <= MAX_INTEGER and 0 <= self.sequence <= MAX_INTEGER):
            raise InvalidEpisode(
                f"episode id {self.episode_id!r}: incarnation and sequence must be integers from 0 to 2^53 - 1"
            )
        if max(map(abs, (self.generation, self.oldest_version, self.newest_version))) > MAX_INTEGER:
            raise InvalidEpisode(
                f"episode {self.episode_id!r}: generation and versions must not exceed 2^53 - 1 in magnitude"
            )

    @classmethod
    def from_episode(cls, episode: Episode) -> EpisodeHeader:
        """Read the header from an episode. Raises `InvalidEpisode` unless its id is run/actor/incarnation/sequence,
        with integers for the last two."""
        if not EPISODE_ID.fullmatch(episode.episode_id):
            raise InvalidEpisode(f"episode id {episode.episode_id!r} is not run/actor/incarnation/sequence")
        _, actor, incarnation, sequence = episode.episode_id.split("/")
        versions = episode.oldest_version, int(episode.policy_version.max())
        return cls(episode.episode_id, actor, int(incarnation), int(sequence), episode.generation, *versions)


@dataclass(frozen=True)
class NewIncarnation:
    """The number of a newly started incarnation of an actor."""

    number: int
    is_first: bool  # the store knows no earlier incarnation of this actor


@dataclass(frozen=True)
class PutReply:
    status: PutStatus
    retry_s: float  # seconds to wait before putting again; 0 unless BUSY
    head_version: int  # newest published weights, -1 = none
    store: int = field(default=0, compare=False)  # id of the store's memory, 0 before its first generation


@dataclass(frozen=True)
class Delivery:
    """An entry handed to the consumer. It stays pending until it is acknowledged, dropped or dead-lettered."""

    entry_id: str
    header: EpisodeHeader
    payload: bytes  # as put; empty if the store lost it, in which case decoding fails
    enqueued_ms: int  # Unix time by the store's clock
    head_version: int  # newest published weights at the time of the put, -1 = none


@dataclass(frozen=True)
class DeadLetter:
    """An episode that was set aside because it could not be trained on."""

    dead_id: str
    header: EpisodeHeader
    payload: bytes  # empty if the episode was too large to keep
    reason: str


@dataclass(frozen=True)
class Generation:
    """A learner's tenure of the queue. `number` fences older learners; `next_version` is the first version that this
    generation may publish."""

    number: int
    next_version: int
    store: int = field(default=0, compare=False)  # id of the store's memory in which it was opened
    turn: int = field(default=0, compare=False)  # the ledger's `turn` when it was opened


class Producer(Protocol):
    """The actor's side."""

    @property
    def connections(self) -> int:
        """How many connections to the store were opened so far. Before it rises, calls are executed exactly once, and
        the store cannot lose its memory without a new id."""

    def new_incarnation(self, actor: str) -> NewIncarnation:
        """Start an incarnation of this actor. Its number is unique and larger than all earlier ones."""

    def wait_for_room(self, timeout_s: float) -> None:
        """After a BUSY reply, wait until the queue may have room again, at most `timeout_s`."""

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        """Put one encoded episode. Sequence numbers must increase; an oversize payload becomes a dead letter. The
        queue's limits are those of the learner's configuration."""

    def put_all(self, episodes: Sequence[tuple[EpisodeHeader, bytes]]) -> list[PutReply]:
        """Put several episodes of one incarnation in one round trip.

        Stops at the first BUSY, which preserves their order; the replies are those of the episodes tried. Raises
        `Malformed`, and puts none, if they are of several incarnations.
        """

    def import_episode(self, original_id: str, header: EpisodeHeader, payload: bytes) -> PutReply:
        """Put an episode that was stored as a file with the id `original_id`.

        Returns DUPLICATE if that id was imported before, by anyone, as long as the store keeps its memory.
        """

    def report(
        self, actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float], store: int = 0
    ) -> None:
        """Send a heartbeat with the incarnation's totals and its health figures.

        Unsent episodes of earlier incarnations are counted as lost with the actor. Episodes that the actor knows to be
        accepted and the store does not are counted as lost with the store, unless `store`, the id of the memory that
        accepted them, shows that nothing was lost (0 = unknown). Raises `Miscounted` then, `Malformed` for an invalid
        report, and changes nothing.
        """

    def ledger(self) -> Ledger:
        """The current counts of all episodes."""


class Consumer(Protocol):
    """The learner's side.

    Unless noted, methods raise `Fenced` before `open_generation` and after another consumer's, and `StoreReset` if the
    store does not remember this consumer's last call.
    """

    @property
    def max_episode_bytes(self) -> int:
        """The largest payload that the queue accepts."""

    @property
    def turn(self) -> int:
        """The number of this consumer's last call, by the count of the store. A store that counts fewer has lost it."""

    def current_generation(self) -> int:
        """The newest generation that was claimed or opened, 0 = none. Needs no generation."""

    def claim_generation(self, number: int) -> None:
        """Fence all older generations, and change nothing else. Raises `Fenced` if `number` or a later one was claimed
        or opened before.

        A learner claims before it loads its checkpoint, so that an older learner can no longer acknowledge episodes
        that this checkpoint lacks.
        """

    def open_generation(
        self,
        restored_version: int,
        consumer: str,
        floor: Generation | None = None,
        memory: LedgerMemory | None = None,
        claimed: int = 0,
    ) -> Generation:
        """Take over the queue, including its pending entries, after restoring a checkpoint.

        Waiting episodes of an older generation that used a version newer than `restored_version` are dropped as fenced.
        A store that is emptier or older than `memory` is cleared, and its ledger continues from `memory`.

        Args:
            restored_version: version of the weights in the checkpoint, -1 = none.
            consumer: name of the consumer.
            floor: the generation of the checkpoint. The new number is larger. If the store has no record of versions,
                `next_version` is at least that of `floor`.
            memory: the ledger in the checkpoint.
            claimed: a number that this consumer claimed, which is then opened; 0 opens the next number.

        Raises:
            Fenced: a generation later than `claimed` was claimed or opened.
        """

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        """Take at most `count` entries, oldest first. Waits up to `timeout_s` for the first one."""

    def resize(self, max_episodes: int) -> None:
        """Set how many episodes may wait in the queue, which are at least as many as its configuration says."""

    def pending(self) -> list[Delivery]:
        """All entries that were taken, by this generation or an earlier one, and not settled."""

    def begin_attempt(self, entry_id: str) -> int:
        """Record that decoding a pending entry begins. Returns how many attempts began and did not end, 0 if the entry
        is not pending here. Entries that crash the learner are recognized by this count."""

    def end_attempt(self, entry_id: str) -> None:
        """Reset the entry's attempts: the learner survived."""

    def ack(self, entry_ids: Sequence[str]) -> list[str]:
        """Settle entries as trained and delete them; returns those that were pending here."""

    def revoke(self, count: int) -> None:
        """Move that many episodes from `trained` to `trained_then_lost`: the updates that used them were abandoned."""

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        """Settle entries untrained and delete them; returns those that were pending here."""

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        """Move a pending entry and its payload to the dead letters; returns False if it is not pending here."""

    def waiting(self, count: int) -> list[Delivery]:
        """The oldest `count` entries that are queued or pending, which stay where they are. Needs no generation."""

    def dead_letters(self) -> list[DeadLetter]:
        """The dead letters that are kept, oldest first, without foreign entries. Needs no generation."""

    def requeue(self, dead_id: str) -> PutStatus:
        """Queue a dead letter again, within the limits of the queue. Needs no generation.

        Returns OK; or FENCED or BUSY, which leave the letter in place. Raises `KeyError` if there is no such letter or
        its payload was not kept.
        """

    def report_learner(self, health: Mapping[str, float]) -> None:
        """Store the learner's health figures for `health`. Needs no generation."""

    def health(self) -> Health:
        """The latest health figures of the learner and of all actors. Needs no generation."""

    def ledger(self) -> Ledger:
        """The current counts of all episodes. Needs no generation."""


class WeightStore(Protocol):
    """Published weights, of which the newest few versions are kept."""

    def publish(self, weights: WeightSet) -> None:
        """Publish weights. Raises `Fenced` unless their generation is current, and `ValueError` unless their version is
        newer than the head."""

    def head(self) -> int:
        """The newest published version, -1 = none."""

    def fetch(self, known: str = "") -> WeightSet | None:
        """Return the published weights, unless `known` is their digest. Their version may be lower than that of the
        known ones, if the store or the run was set back or started afresh. Raises `actors.codec.InvalidWeights` if they
        are damaged or lost."""


class Transport(Producer, Consumer, WeightStore, Protocol):
    """All three sides of one store."""

    def close(self) -> None:
        """Release the connections."""
