"""Cases that only a server has: lost replies, foreign entries, restarts, missing functions."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from actors.codec import InvalidWeights, decode_episode
from actors.transport.base import DropReason, Generation, Unreachable
from actors.transport.ledger import LedgerError
from actors.transport.redis import RedisTransport, connect
from actors.types.episode import InvalidEpisode
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.builders import make_weights
from tests.support.queueing import DUPLICATE, OK, counts, put, take_ids
from tests.support.small_queue import SmallQueue

pytestmark = pytest.mark.integration


class TestRedisOnly:
    """Cases that only a server has, with functions and with scripts."""

    @pytest.fixture(params=[False, True], ids=["functions", "scripts"])
    def transport(
        self, embedded_redis: EmbeddedRedis, namespace: str, request: pytest.FixtureRequest
    ) -> RedisTransport:
        transport = connect(embedded_redis.url, SmallQueue(payload_ttl_s=1), namespace, scripts=request.param)
        transport.open_generation(-1, "learner")
        return transport

    @pytest.fixture
    def client(self, embedded_redis: EmbeddedRedis) -> Any:
        return redis.Redis.from_url(embedded_redis.url)

    def test_foreign_entries_are_removed_and_counted(
        self, transport: RedisTransport, client: Any, namespace: str
    ) -> None:
        stream = f"{{{namespace}}}:episodes"
        client.xadd(stream, {"hello": "world"})
        put(transport, 0)
        client.xadd(stream, {"episode": "x", "actor": "a", "incarnation": "none"})
        assert len(transport.take(9, 0)) == 1
        assert counts(transport, "foreign", "accepted", "pending", "stream_entries") == (2, 1, 1, 1)

    def test_check_detects_a_lost_entry(self, transport: RedisTransport, client: Any, namespace: str) -> None:
        put(transport, 0, 1)
        client.xtrim(f"{{{namespace}}}:episodes", maxlen=1, approximate=False)
        with pytest.raises(LedgerError, match="in the stream"):
            transport.ledger().check()

    def test_a_lost_payload_is_delivered_empty(self, transport: RedisTransport, client: Any, namespace: str) -> None:
        put(transport, 0)
        client.delete(f"{{{namespace}}}:payload:run/a/0/0")
        (delivery,) = transport.take(1, 0)
        with pytest.raises(InvalidEpisode):
            decode_episode(delivery.payload)
        assert transport.dead_letter(delivery.entry_id, "lost")

    def test_payloads_that_are_not_accepted_expire(
        self, transport: RedisTransport, client: Any, namespace: str
    ) -> None:
        put(transport, 0, 0)
        put(transport, 1, generation=9)  # refused
        abandoned = f"{{{namespace}}}:payload:run/a/0/2"
        client.set(abandoned, b"payload", px=1000, nx=True)
        assert sorted(client.keys(f"{{{namespace}}}:payload:*")) == [
            f"{{{namespace}}}:payload:run/a/0/0".encode(),
            abandoned.encode(),
        ]
        time.sleep(1.1)
        assert [d.payload for d in transport.take(9, 0)] == [b"payload"]
        assert client.exists(abandoned) == 0

    @pytest.mark.parametrize(
        "verb", ["put", "take", "begin_attempt", "ack", "dead_letter", "requeue", "publish", "open"]
    )
    def test_a_verb_whose_reply_was_lost_is_not_executed_twice(
        self, transport: RedisTransport, verb: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if verb != "put":
            put(transport, 0)
        entry = take_ids(transport)[0] if verb in ("begin_attempt", "ack", "dead_letter", "requeue") else ""
        if verb == "requeue":
            transport.dead_letter(entry, "reason")
        calls = {
            "put": lambda: put(transport, 0),
            "take": lambda: len(transport.take(9, 0)),
            "begin_attempt": lambda: transport.begin_attempt(entry),
            "ack": lambda: transport.ack([entry]),
            "dead_letter": lambda: transport.dead_letter(entry, "reason"),
            "requeue": lambda: transport.requeue(transport.dead_letters()[0].dead_id),
            "publish": lambda: transport.publish(make_weights()),
            "open": lambda: transport.open_generation(-1, "learner"),
        }
        expected = {
            "put": [DUPLICATE],
            "take": 1,
            "begin_attempt": 1,
            "ack": [entry],
            "dead_letter": True,
            "requeue": OK,
            "publish": None,
            "open": Generation(2, 0),
        }
        lost = []
        # a pipeline of SET and call gives two replies; requeue reads stream and payload first
        replies_to_come = [{"put": 2, "publish": 2, "requeue": 3}.get(verb, 1)]
        read: Any = redis.connection.AbstractConnection.read_response

        def lose_one_reply(connection: Any, *args: Any, **options: Any) -> Any:
            reply = read(connection, *args, **options)
            replies_to_come[0] -= 1
            if replies_to_come[0] == 0:
                lost.append(reply)
                raise redis.ConnectionError("the reply got lost")
            return reply

        monkeypatch.setattr(redis.connection.AbstractConnection, "read_response", lose_one_reply)
        assert calls[verb]() == expected[verb]
        monkeypatch.undo()
        assert len(lost) == 1
        transport.ledger().check()
        if verb == "put":
            assert [d.payload for d in transport.take(9, 0)] == [b"payload"]

    def test_settled_episodes_leave_no_keys_behind(
        self, transport: RedisTransport, client: Any, embedded_redis: EmbeddedRedis, namespace: str
    ) -> None:
        transport = connect(embedded_redis.url, SmallQueue(dead_letters_kept=1, weights_kept=2), namespace)
        generation = transport.open_generation(-1, "learner").number
        for version in range(4):
            transport.publish(make_weights(version, generation))
        put(transport, 0, 1, 2, 3, generation=generation)
        put(transport, 4, 5, version=3, generation=generation)
        trained, stale, *rest = take_ids(transport, 5)
        for entry_id in (trained, stale, *rest):
            transport.begin_attempt(entry_id)
        transport.ack([trained])
        transport.drop([stale], DropReason.STALE)
        for entry_id in rest[:2]:
            transport.dead_letter(entry_id, "reason")
        transport.open_generation(0, "learner")  # fences the last two, one of them pending
        assert counts(transport, "trained", "dropped_stale", "dead_lettered", "fenced") == (1, 1, 2, 2)
        kept = {"payload:run/a/0/3", f"weights:{generation}:2", f"weights:{generation}:3"}
        named = {"episodes", "ledger", "generations", "weights", "dead", "room", "replies"}
        assert {key.decode().partition(":")[2] for key in client.keys(f"{{{namespace}}}:*")} == kept | named

    def test_a_truncated_payload_is_put_again(self, transport: RedisTransport, client: Any, namespace: str) -> None:
        client.set(f"{{{namespace}}}:payload:run/a/0/0", b"cut", px=10_000)
        assert put(transport, 0) == [OK]
        assert [d.payload for d in transport.take(1, 0)] == [b"payload"]

    def test_a_server_without_functions_uses_scripts(
        self, embedded_redis: EmbeddedRedis, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        transport = connect(embedded_redis.url, None, f"{namespace}-old")
        send: Any = redis.Redis.execute_command

        def refuse_functions(client: Any, *args: Any, **options: Any) -> Any:
            if args[0] in ("FCALL", "FUNCTION LOAD"):
                raise redis.ResponseError(f"unknown command '{args[0]}', with args beginning with: ")
            return send(client, *args, **options)

        monkeypatch.setattr(redis.Redis, "execute_command", refuse_functions)
        transport.open_generation(-1, "learner")
        assert put(transport, 0) == [OK]
        assert transport.ack(take_ids(transport)) != []

    def test_damaged_weights_are_refused(self, transport: RedisTransport, client: Any, namespace: str) -> None:
        transport.publish(make_weights())
        client.setrange(f"{{{namespace}}}:weights:1:0", 100, b"\xff\xff")
        transport._cache.clear()  # as on a machine without the learner
        with pytest.raises(InvalidWeights, match="sha256"):
            transport.fetch()

    def test_a_stopped_server_is_unreachable(self, namespace: str) -> None:
        with EmbeddedRedis() as server:
            transport = connect(server.url, None, namespace)
            transport.open_generation(-1, "learner")
        for verb in (lambda: put(transport, 0), lambda: transport.take(1, 0)):
            with pytest.raises(Unreachable):
                verb()

    def test_functions_lost_in_a_restart_are_loaded_again(self, namespace: str) -> None:
        with EmbeddedRedis() as server:
            client: Any = redis.Redis.from_url(server.url)
            for scripts in (False, True):
                transport = connect(server.url, None, f"{namespace}{scripts}", scripts=scripts)
                transport.open_generation(-1, "learner")
                client.function_flush()
                client.script_flush()
                assert put(transport, 0) == [OK]
                client.function_flush()
                client.script_flush()
                assert len(transport.take(1, 0)) == 1
