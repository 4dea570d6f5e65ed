"""Sending commands together over redis-py's connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from actors.transport.redis_exchange import WRITE_BYTES, exchange, join_commands
from deploy.launch.embedded_redis import EmbeddedRedis

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with EmbeddedRedis() as server:
        connected = redis.Redis.from_url(server.url, protocol=2)
        connected.mset({"a": "1", "b": "2"})
        yield connected
        connected.close()


def test_an_error_takes_the_place_of_its_reply(client: redis.Redis) -> None:
    commands = [("GET", "a"), ("HGET", "a", "field"), ("GET", "b")]
    first, error, last = exchange(client.connection_pool, commands, redis.ResponseError)
    assert (first, last) == (b"1", b"2")
    assert isinstance(error, redis.ResponseError)


def test_replies_that_were_not_read_reach_nobody(client: redis.Redis) -> None:
    commands = [("GET", "a"), ("HGET", "a", "field"), *[("GET", "a")] * 1000]
    for _ in range(20):
        with pytest.raises(redis.ResponseError):
            exchange(client.connection_pool, commands, KeyError)  # stops reading at the error
        assert exchange(client.connection_pool, [("GET", "b")], redis.ResponseError) == [b"2"]


def test_a_connection_that_the_server_closed_is_opened_again(client: redis.Redis) -> None:
    other = redis.Redis(connection_pool=client.connection_pool)
    own = other.client_id()
    with redis.Redis(connection_pool=redis.ConnectionPool(**_options(client))) as killer:
        killer.client_kill_filter(_id=str(own))
    assert exchange(client.connection_pool, [("GET", "a"), ("GET", "b")], redis.ResponseError) == [b"1", b"2"]


def _options(client: redis.Redis) -> dict[str, object]:
    pool = client.connection_pool
    return {**pool.connection_kwargs, "connection_class": pool.connection_class}


@pytest.mark.parametrize("sizes", [[10], [1000] * 500, [WRITE_BYTES - 1, 5, WRITE_BYTES * 3, 5, 5]])
def test_commands_are_joined_to_writes_of_a_bounded_size(sizes: list[int]) -> None:
    commands = [("SET", f"key{i}", b"x" * size) for i, size in enumerate(sizes)]
    alone = [join_commands([command])[0] for command in commands]
    writes = join_commands(commands)
    assert b"".join(writes) == b"".join(alone)
    assert all(len(write) <= WRITE_BYTES or write in alone for write in writes)
    assert len(writes) <= 1 + 2 * sum(map(len, alone)) // WRITE_BYTES
