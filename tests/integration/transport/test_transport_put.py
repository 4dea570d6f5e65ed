"""Episodes are put in order, once, and within the queue's limits; on every backend."""

from __future__ import annotations

import time

import pytest

from actors.codec import decode_episode, encode_episode
from actors.transport.base import EpisodeHeader, Transport
from tests.conftest import Connect
from tests.support.builders import make_episode
from tests.support.episodes import episodes_equal
from tests.support.queueing import BUSY, DUPLICATE, OK, counts, header, put, take_ids

pytestmark = pytest.mark.integration


def test_episodes_arrive_in_order_and_intact(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    episodes = [make_episode(n, sequence=n) for n in range(5)]
    before_ms = time.time() * 1000
    for episode in episodes:
        assert transport.put(EpisodeHeader.from_episode(episode), encode_episode(episode)).status is OK
    deliveries = transport.take(3, 0) + transport.take(3, 0)
    assert [d.header for d in deliveries] == [EpisodeHeader.from_episode(e) for e in episodes]
    assert all(episodes_equal(decode_episode(d.payload), e) for d, e in zip(deliveries, episodes, strict=True))
    assert all(abs(d.enqueued_ms - before_ms) < 10_000 for d in deliveries)
    assert counts(transport, "accepted", "queued", "pending") == (5, 0, 5)


def test_a_sequence_number_is_accepted_once(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    assert put(transport, 0, 0, 2, 1) == [OK, DUPLICATE, OK, DUPLICATE]
    assert put(transport, 0, actor="b") == [OK]
    assert put(transport, 0, incarnation=1) == [OK]
    deliveries = transport.take(100, 0)
    assert [d.payload for d in deliveries] == [b"payload"] * 4  # duplicates did not change the accepted payloads
    transport.ack([d.entry_id for d in deliveries])
    assert put(transport, 2) == [DUPLICATE]  # also after it was settled
    assert counts(transport, "accepted", "trained") == (4, 4)


def test_a_full_queue_is_busy_until_an_episode_is_taken(open_transport: Connect) -> None:
    transport = open_transport(max_episodes=2)
    transport.open_generation(-1, "learner")
    assert put(transport, 0, 1) == [OK, OK]
    reply = transport.put(header(2), b"payload")
    assert reply.status is BUSY
    assert reply.retry_s > 0
    take_ids(transport, 1)
    assert put(transport, 2) == [OK]
    assert counts(transport, "accepted", "queued", "pending") == (3, 2, 1)


def test_bytes_are_limited_but_an_empty_queue_accepts_any_episode(open_transport: Connect) -> None:
    transport = open_transport(max_bytes=10)
    transport.open_generation(-1, "learner")
    assert put(transport, 0, payload=b"x" * 20) == [OK]
    assert put(transport, 1, payload=b"x") == [BUSY]
    take_ids(transport)
    assert put(transport, 1, 2, payload=b"x" * 5) == [OK, OK]
    assert put(transport, 3, payload=b"x") == [BUSY]
    assert counts(transport, "queued_bytes") == (10,)
