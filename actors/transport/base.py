"""The values and errors of `actors.transport.redis.Transport`; `REF` in `lua/store.lua` is their text in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from actors.transport.ledger import EPISODE_ID, MAX_INTEGER
from actors.types.episode import Episode, InvalidEpisode
from actors.types.names import NAME_RULE

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
    generation: int
    oldest_version: int  # of the weights that acted
    newest_version: int

    def __post_init__(self) -> None:
        """Raise `InvalidEpisode` for a header that the store would reject."""
        if not EPISODE_ID.fullmatch(self.episode_id) or max(self.incarnation, self.sequence) > MAX_INTEGER:
            raise InvalidEpisode(
                f"episode id {self.episode_id!r} is not run/actor/incarnation/sequence: names are {NAME_RULE}; "
                "incarnation and sequence are integers from 0 to 2^53 - 1"
            )
        if max(map(abs, (self.generation, self.oldest_version, self.newest_version))) > MAX_INTEGER:
            raise InvalidEpisode(
                f"episode {self.episode_id!r}: generation and versions must not exceed 2^53 - 1 in magnitude"
            )

    @classmethod
    def from_episode(cls, episode: Episode) -> EpisodeHeader:
        """Read the header from an episode. Raises `InvalidEpisode`."""
        newest = int(episode.policy_version.max())
        return cls(episode.episode_id, episode.generation, episode.oldest_version, newest)

    @property
    def actor(self) -> str:
        return self.episode_id.split("/")[1]

    @property
    def incarnation(self) -> int:
        return int(self.episode_id.split("/")[2])

    @property
    def sequence(self) -> int:
        return int(self.episode_id.split("/")[3])


@dataclass(frozen=True)
class NewIncarnation:
    """The number of a newly started incarnation of an actor."""

    number: int
    is_first: bool  # the store knows no earlier incarnation of this actor


@dataclass(frozen=True)
class PutReply:
    status: PutStatus
    head_version: int  # newest published weights, -1 = none
    store: int = field(default=0, compare=False)  # id of the store's memory, 0 before its first generation


@dataclass(frozen=True)
class Delivery:
    """An entry handed to the consumer. It stays pending until it is acknowledged, dropped or dead-lettered."""

    entry_id: str
    header: EpisodeHeader
    payload: bytes  # as put; empty if the store lost it, in which case decoding fails
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


def encode_ref(header: EpisodeHeader, size: int) -> str:
    """Format an episode's REF without the head version, which the store prepends. `size` is the payload's, in bytes."""
    h = header
    return f"{h.generation} {h.oldest_version} {h.newest_version} {size} {h.episode_id}"


def decode_ref(ref: bytes) -> tuple[EpisodeHeader, int]:
    """Parse a REF into the header and the head version at the time of the put."""
    head, generation, oldest, newest, _, episode_id = ref.decode().split(" ")
    return EpisodeHeader(episode_id, int(generation), int(oldest), int(newest)), int(head)


def header_of(entry: Mapping[bytes, bytes]) -> EpisodeHeader | None:
    """The header of an entry of a stream; None for foreign entries, since actors have write access to the streams."""
    try:
        return decode_ref(entry[b"ref"])[0]
    except (KeyError, ValueError):
        return None


def to_dict(reply: Sequence[bytes]) -> dict[bytes, bytes]:
    """Convert a flat list of alternating keys and values."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
