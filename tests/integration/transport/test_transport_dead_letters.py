"""Dead letters: when episodes are set aside, how they are requeued, and how many are kept; on every backend."""

from __future__ import annotations

import pytest

from actors.codec import decode_episode, encode_episode
from actors.transport.base import EpisodeHeader, Transport
from actors.types.episode import InvalidEpisode
from tests.conftest import Connect
from tests.support.builders import make_episode
from tests.support.queueing import BUSY, FENCED, OK, counts, header, put, take_ids

pytestmark = pytest.mark.integration


def test_an_oversize_episode_becomes_a_dead_letter_without_payload(open_transport: Connect) -> None:
    transport = open_transport(max_episode_bytes=10)
    transport.open_generation(-1, "learner")
    assert put(transport, 0, payload=b"x" * 11) == [OK]
    (letter,) = transport.dead_letters()
    assert letter.payload == b""
    assert "11 bytes" in letter.reason
    with pytest.raises(KeyError):
        transport.requeue(letter.dead_id)
    assert counts(transport, "accepted", "dead_lettered", "queued") == (1, 1, 0)


def test_a_corrupt_episode_is_set_aside_and_the_others_are_trained(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    episodes = [make_episode(n, sequence=n) for n in range(3)]
    payloads = [encode_episode(episode) for episode in episodes]
    payloads[1] = payloads[1][:200] + b"\x00" + payloads[1][201:]
    for episode, payload in zip(episodes, payloads, strict=True):
        transport.put(EpisodeHeader.from_episode(episode), payload)
    trained, set_aside = [], []
    for delivery in transport.take(3, 0):
        try:
            decode_episode(delivery.payload)
            trained.append(delivery.entry_id)
        except InvalidEpisode as error:
            set_aside += [transport.dead_letter(delivery.entry_id, str(error)) for _ in range(2)]
    assert set_aside == [True, False]
    assert transport.ack(trained) == trained
    assert len(trained) == 2
    (letter,) = transport.dead_letters()
    assert letter.payload == payloads[1]
    assert letter.header == EpisodeHeader.from_episode(episodes[1])
    assert "checksum" in letter.reason
    assert counts(transport, "trained", "dead_lettered", "pending", "dead_bytes") == (2, 1, 0, len(payloads[1]))


def test_a_dead_letter_can_be_requeued_once_there_is_room(open_transport: Connect) -> None:
    transport = open_transport(max_episodes=1)
    transport.open_generation(-1, "learner")
    put(transport, 0)
    (entry_id,) = take_ids(transport)
    transport.dead_letter(entry_id, "a bug fixed since")
    (letter,) = transport.dead_letters()
    put(transport, 1)
    assert transport.requeue(letter.dead_id) is BUSY
    transport.ack(take_ids(transport))
    assert transport.requeue(letter.dead_id) is OK
    with pytest.raises(KeyError):
        transport.requeue(letter.dead_id)
    assert counts(transport, "dead_lettered", "queued", "dead_bytes") == (0, 1, 0)
    (delivery,) = transport.take(1, 0)
    assert (delivery.header, delivery.payload) == (header(0), b"payload")
    transport.ack([delivery.entry_id])
    assert counts(transport, "accepted", "trained") == (2, 2)


def test_the_oldest_dead_letters_are_evicted_beyond_the_limits_on_number_and_bytes(open_transport: Connect) -> None:
    transport = open_transport(dead_letters_kept=2, max_bytes=10)
    transport.open_generation(-1, "learner")
    for sequence, size in enumerate((1, 1, 1, 9, 4)):
        put(transport, sequence, payload=b"x" * size)
        transport.dead_letter(take_ids(transport)[0], f"reason {sequence}")
    assert [letter.reason for letter in transport.dead_letters()] == ["reason 4"]
    assert counts(transport, "dead_lettered", "dead_letters_evicted", "dead_bytes") == (5, 4, 4)


def test_a_fenced_dead_letter_cannot_be_requeued(open_transport: Connect) -> None:
    transport = open_transport()
    transport.open_generation(-1, "learner")
    put(transport, 0, version=7)
    transport.dead_letter(take_ids(transport)[0], "reason")
    transport.open_generation(3, "learner")
    assert transport.requeue(transport.dead_letters()[0].dead_id) is FENCED
    assert counts(transport, "dead_lettered") == (1,)
