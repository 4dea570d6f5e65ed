"""A server that is out of memory or a replica, separate servers for queue and weights, and damaged weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actors.config import QueueConfig
from actors.transport import redis_server
from actors.transport.base import Fenced, StoreReset, Unreachable
from actors.transport.redis import RedisTransport, connect
from actors.workers.outbox import Outbox
from actors.workers.weight_client import WeightClient
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.builders import make_episode, make_weights
from tests.support.queueing import BUSY, OK, counts, header, put, take_ids

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


@pytest.mark.parametrize("scripts", [False, True], ids=["functions", "scripts"])
def test_puts_are_busy_when_the_server_is_out_of_memory_until_the_learner_frees_some(
    server: EmbeddedRedis, scripts: bool
) -> None:
    transport = connect(server.url, QueueConfig(), "tamiyo", scripts)
    transport.open_generation(-1, "learner")
    big = b"x" * 200_000
    client: Any = transport._queue.client
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_500_000)
    statuses = []
    while BUSY not in statuses:
        statuses += put(transport, len(statuses), payload=big)
        assert len(statuses) < 20
    accepted = len(statuses) - 1
    assert accepted >= 2
    client.config_set("maxmemory", client.info("memory")["used_memory"])  # too little even for a small episode
    outbox = Outbox(transport, "run", "b", 0, capacity_steps=1000)  # the actor keeps its episode and tries again later
    outbox.add(make_episode(actor="b"))
    outbox.ship(0.0)
    assert (len(outbox), outbox.counts.produced) == (1, 1)
    ids = [d.entry_id for d in transport.take(100, 0)]
    assert len(ids) == accepted
    assert transport.dead_letter(ids[0], "reason")
    assert len(transport.ack(ids[1:])) == accepted - 1
    counts(transport)
    assert put(transport, accepted, payload=big) == [OK]
    assert counts(transport, "accepted", "trained", "dead_lettered", "queued") == (accepted + 1, accepted - 1, 1, 1)


def test_calls_wait_until_a_replica_is_promoted(server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = connect(server.url)
    transport.open_generation(-1, "learner")
    client: Any = transport._queue.client
    slept: list[float] = []

    def fail_over(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            connect(server.url)._queue.client.replicaof("NO", "ONE")

    monkeypatch.setattr(redis_server.time, "sleep", fail_over)
    client.replicaof("127.0.0.1", "1")
    assert put(transport, 0) == [OK]
    assert len(slept) >= 3
    assert len(transport.take(1, 0)) == 1
    client.replicaof("127.0.0.1", "1")
    monkeypatch.setattr(redis_server.time, "sleep", lambda seconds: None)
    with pytest.raises(Unreachable):
        put(transport, 1)


@pytest.fixture
def two_servers(server: EmbeddedRedis, embedded_redis: EmbeddedRedis, namespace: str) -> RedisTransport:
    return connect(server.url, QueueConfig(weights_redis=embedded_redis.url), namespace)


def test_weights_can_be_on_a_separate_server(
    two_servers: RedisTransport, server: EmbeddedRedis, embedded_redis: EmbeddedRedis, namespace: str
) -> None:
    learner = two_servers
    learner.open_generation(-1, "learner")
    learner.publish(make_weights(0))
    put(learner, 0)
    queue: Any = connect(server.url)._queue.client
    weights: Any = connect(embedded_redis.url)._queue.client
    assert not queue.keys("*:weights:*")
    assert not weights.keys(f"{{{namespace}}}:payload*") + weights.keys(f"{{{namespace}}}:episodes")
    assert weights.exists(f"{{{namespace}}}:weights:1:0")
    actor = connect(server.url, QueueConfig(weights_redis=embedded_redis.url), namespace)
    assert (actor.head(), actor.put_all([])) == (0, [])
    assert actor.fetch() is not None
    assert learner.take(1, 0)[0].head_version == 0


def test_versions_and_fences_hold_across_both_servers(
    two_servers: RedisTransport, server: EmbeddedRedis, embedded_redis: EmbeddedRedis, namespace: str
) -> None:
    old = two_servers
    old.open_generation(-1, "learner")
    old.publish(make_weights(0))
    old.publish(make_weights(1))
    new = connect(server.url, QueueConfig(weights_redis=embedded_redis.url), namespace)
    assert new.open_generation(0, "learner").next_version == 2
    with pytest.raises(Fenced):
        old.publish(make_weights(2))
    new.publish(make_weights(2, 2))
    for key in new._weights.client.keys(f"{{{namespace}}}:weights*"):
        new._weights.client.delete(key)
    with pytest.raises(StoreReset):  # the weight server lost its memory
        new.publish(make_weights(3, 2))
    generation = new.open_generation(2, "learner")
    assert generation.next_version == 3  # the queue's server knows the head
    new.publish(make_weights(3, generation.number))
    assert new.head() == 3


def test_weights_with_a_flipped_bit_are_counted_and_the_old_ones_kept(
    embedded_redis: EmbeddedRedis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = connect(embedded_redis.url, None, namespace)
    transport.open_generation(-1, "learner")
    weight_client = WeightClient(transport)
    transport.publish(make_weights(0))
    first = weight_client.newest()
    assert first is not None
    transport.publish(make_weights(1))
    key, client = f"{{{namespace}}}:weights:1:1", transport._queue.client
    byte = client.getrange(key, 70, 70)
    client.setrange(key, 70, bytes([byte[0] ^ 1]))
    transport._cache.clear()  # as on a machine without the learner
    assert weight_client.newest(first.digest) is None
    assert weight_client.damaged == 1
    assert "sha256" in caplog.text
    assert "continuing with the weights before them" in caplog.text
    transport.publish(make_weights(2))
    weights = weight_client.newest(first.digest)
    assert weights is not None
    assert (weights.version, weight_client.damaged) == (2, 1)


def test_put_all_keeps_the_order_of_episodes(embedded_redis: EmbeddedRedis, namespace: str) -> None:
    transport = connect(embedded_redis.url, QueueConfig(max_episodes=3), namespace)
    transport.open_generation(-1, "learner")
    episodes = [(header(n), b"payload") for n in range(6)]
    assert [r.status for r in transport.put_all(episodes)] == [OK, OK, OK, BUSY]
    transport.ack(take_ids(transport))
    assert [r.status for r in transport.put_all(episodes[3:])] == [OK, OK, OK]
    assert counts(transport, "accepted", "trained", "queued") == (6, 3, 3)
