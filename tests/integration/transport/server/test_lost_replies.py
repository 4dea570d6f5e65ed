"""Cases that only a server has: replies and payloads that are lost on the way, and what expires or is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from actors.codec import decode_episode
from actors.transport.base import DropReason, Generation
from actors.transport.redis import Transport
from actors.transport.redis_exchange import exchange
from actors.types.episode import InvalidEpisode
from tests.conftest import FIRST_SERVER
from tests.support.builders import make_weights
from tests.support.queueing import DUPLICATE, OK, counts, put, take_ids
from tests.support.stores import Store

pytestmark = pytest.mark.integration


@pytest.fixture
def transport(any_store: Store) -> Transport:
    transport = any_store(payload_ttl_s=1)
    transport.open_generation(-1, "learner")
    return transport


def prepared(transport: Transport, verb: str) -> Callable[[], Any]:
    """A call of the verb, which the store has not seen yet."""
    if verb == "put":
        return lambda: put(transport, 0)
    put(transport, 0)
    if verb == "take":
        return lambda: len(transport.take(9, 0))
    if verb == "publish":
        return lambda: transport.publish(make_weights())
    if verb == "open":
        return lambda: transport.open_generation(-1, "learner")
    (entry,) = take_ids(transport)
    if verb == "requeue":
        transport.dead_letter(entry, "reason")
        return lambda: transport.requeue(transport.dead_letters()[0].dead_id)
    return {
        "begin_attempt": lambda: transport.begin_attempt(entry),
        "ack": lambda: transport.ack([entry]) == [entry],
        "dead_letter": lambda: transport.dead_letter(entry, "reason"),
    }[verb]


@pytest.mark.parametrize(
    ("verb", "reply", "expected"),
    [  # a pipeline of SET and call gives two replies; requeue reads stream and payload first
        ("put", 2, [DUPLICATE]),
        ("take", 1, 1),
        ("begin_attempt", 1, 1),
        ("ack", 1, True),
        ("dead_letter", 1, True),
        ("requeue", 3, OK),
        ("publish", 2, None),
        ("open", 1, Generation(2, 0)),
    ],
)
def test_a_verb_whose_reply_was_lost_is_not_executed_twice(
    transport: Transport, verb: str, reply: int, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, read, seen = prepared(transport, verb), redis.connection.AbstractConnection.read_response, list[Any]()

    def lose_one_reply(connection: Any, *args: Any, **options: Any) -> Any:
        seen.append(read(connection, *args, **options))
        if len(seen) == reply:
            raise redis.ConnectionError("the reply got lost")
        return seen[-1]

    monkeypatch.setattr(redis.connection.AbstractConnection, "read_response", lose_one_reply)
    assert call() == expected
    monkeypatch.undo()
    assert len(seen) > reply
    transport.ledger().check()
    if verb == "put":
        assert [d.payload for d in transport.take(9, 0)] == [b"payload"]


@pytest.mark.parametrize("any_store", FIRST_SERVER, indirect=True)
def test_payloads_that_are_not_accepted_expire(transport: Transport, any_store: Store) -> None:
    put(transport, 0, 0)
    put(transport, 1, generation=9)  # refused
    any_store.client.set(any_store.key("payload:run/a/0/2"), b"abandoned", px=1000, nx=True)
    assert any_store.keys("payload:*") == ["payload:run/a/0/0", "payload:run/a/0/2"]
    time.sleep(1.1)
    assert any_store.keys("payload:*") == ["payload:run/a/0/0"]
    assert [d.payload for d in transport.take(9, 0)] == [b"payload"]


def test_payloads_that_are_lost_or_cut_short_are_put_again_or_set_aside(transport: Transport, any_store: Store) -> None:
    any_store.client.set(any_store.key("payload:run/a/0/0"), b"cut", px=10_000)
    assert put(transport, 0) == [OK]
    (delivery,) = transport.take(1, 0)
    assert delivery.payload == b"payload"
    put(transport, 1)
    any_store.client.delete(any_store.key("payload:run/a/0/1"))
    (delivery,) = transport.take(1, 0)
    with pytest.raises(InvalidEpisode):
        decode_episode(delivery.payload)
    assert transport.dead_letter(delivery.entry_id, "lost")


def test_settled_episodes_leave_no_keys_behind(any_store: Store) -> None:
    transport = any_store(dead_letters_kept=1, weights_kept=2)
    transport.open_generation(-1, "learner")
    for version in range(4):
        transport.publish(make_weights(version))
    put(transport, 0, 1, 2, 3)
    put(transport, 4, 5, version=3)
    trained, stale, *others = take_ids(transport, 5)
    for entry_id in (trained, stale, *others):
        transport.begin_attempt(entry_id)
    transport.ack([trained])
    transport.drop([stale], DropReason.STALE)
    for entry_id in others[:2]:
        transport.dead_letter(entry_id, "reason")
    transport.open_generation(0, "learner")  # fences the last two, one of them pending
    assert counts(transport, "trained", "dropped_stale", "dead_lettered", "fenced") == (1, 1, 2, 2)
    kept = {"payload:run/a/0/3", "weights:1:2", "weights:1:3"}
    named = {"episodes", "ledger", "generations", "weights", "dead", "room", "replies"}
    assert set(any_store.keys()) == kept | named


def test_replies_that_were_not_read_reach_nobody(store: Store) -> None:
    """Of commands that are sent together."""
    with redis.Redis.from_url(store.url, protocol=2) as client:
        client.mset({"a": "1", "b": "2"})
        commands = [("GET", "a"), ("HGET", "a", "field"), *[("GET", "a")] * 1000]
        for _ in range(20):
            with pytest.raises(redis.ResponseError):
                exchange(client.connection_pool, commands, KeyError)  # stops reading at the error
            assert exchange(client.connection_pool, [("GET", "b")], redis.ResponseError) == [b"2"]
