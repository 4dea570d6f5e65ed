"""Conversion between the transport's values and their text in Redis; see `REF` in `lua/store.lua` for the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.transport.base import DeadLetter, EpisodeHeader


def encode_ref(header: EpisodeHeader, size: int) -> str:
    """Format an episode's REF without the head version, which the store prepends. `size` is the payload's, in bytes."""
    h = header
    return f"{h.generation} {h.oldest_version} {h.newest_version} {size} {h.episode_id}"


def decode_ref(ref: bytes) -> tuple[EpisodeHeader, int]:
    """Parse a REF into the header and the head version at the time of the put."""
    head, generation, oldest, newest, _, episode_id = ref.decode().split(" ")
    _, actor, incarnation, sequence = episode_id.split("/")
    versions = (int(generation), int(oldest), int(newest))
    return EpisodeHeader(episode_id, actor, int(incarnation), int(sequence), *versions), int(head)


def is_ref(text: bytes) -> bool:
    """Whether a stream entry is an episode, as actors have write access to the stream."""
    try:
        decode_ref(text)
    except ValueError:
        return False
    return True


def decode_dead_letter(dead_id: bytes, fields: Mapping[bytes, bytes]) -> DeadLetter | None:
    """Parse an entry of the stream `dead`, without its payload. Returns None for foreign entries, since actors have
    write access to this stream."""
    try:
        header, reason = decode_ref(fields[b"ref"])[0], fields[b"reason"]
    except (KeyError, ValueError):
        return None
    return DeadLetter(dead_id.decode(), header, b"", reason.decode(errors="replace"))


def entry_time_ms(entry_id: bytes) -> int:
    """The Unix time at which a stream entry was added."""
    return int(entry_id.partition(b"-")[0])


def to_dict(reply: Sequence[bytes]) -> dict[bytes, bytes]:
    """Convert a flat list of alternating keys and values."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
