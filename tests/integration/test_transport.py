"""One suite for every transport: in memory, Redis functions, Redis scripts."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import numpy as np
import pytest
import redis

from actors.codec import InvalidWeights, decode_episode, encode_episode
from actors.config import QueueConfig
from actors.episode import InvalidEpisode, episodes_equal
from actors.errors import UserError
from actors.transport.base import DropReason, EpisodeHeader, Fenced, Generation, PutStatus, Transport, Unreachable
from actors.transport.ledger import ActorLedger, LedgerError
from actors.transport.redis import RedisTransport, connect
from deploy.embedded_redis import EmbeddedRedis
from tests.builders import make_episode, make_weights
from tests.conftest import Connect

pytestmark = pytest.mark.integration

OK, DUPLICATE, FENCED, BUSY = PutStatus.OK, PutStatus.DUPLICATE, PutStatus.FENCED, PutStatus.BUSY


def header(
    sequence: int, generation: int = 1, version: int = 0, actor: str = "a", incarnation: int = 0
) -> EpisodeHeader:
    episode_id = f"run/{actor}/{incarnation}/{sequence}"
    return EpisodeHeader(episode_id, actor, incarnation, sequence, generation, version, version)


def put(transport: Transport, *sequences: int, payload: bytes = b"payload", **fields: Any) -> list[PutStatus]:
    return [transport.put(header(sequence, **fields), payload).status for sequence in sequences]


def take_ids(transport: Transport, count: int = 100) -> list[str]:
    return [delivery.entry_id for delivery in transport.take(count, 0)]


def counts(transport: Transport, *terms: str) -> tuple[int, ...]:
    ledger = transport.ledger()
    ledger.check()
    return tuple(getattr(ledger, term) for term in terms)


def test_episodes_arrive_in_order_and_intact(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    episodes = [make_episode(n, sequence=n) for n in range(5)]
    before_ms = time.time() * 1000
    for episode in episodes:
        assert transport.put(EpisodeHeader.of(episode), encode_episode(episode)).status is OK
    deliveries = transport.take(3, 0) + transport.take(3, 0)
    assert [d.header for d in deliveries] == [EpisodeHeader.of(e) for e in episodes]
    assert all(episodes_equal(decode_episode(d.payload), e) for d, e in zip(deliveries, episodes, strict=True))
    assert all(abs(d.enqueued_ms - before_ms) < 10_000 for d in deliveries)
    assert counts(transport, "accepted", "queued", "pending") == (5, 0, 5)


def test_ack_settles_what_is_pending_here_once(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    put(transport, 0, 1, 2)
    first, second = take_ids(transport, 2)
    assert transport.ack([]) == []
    assert transport.ack([first, first, "1-1"]) == [first]
    assert transport.ack([first, second]) == [second]
    assert counts(transport, "trained", "queued", "pending", "stream_entries", "queued_bytes") == (2, 1, 0, 1, 7)


def test_drop_counts_its_reason(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    put(transport, 0, 1, 2)
    ids = take_ids(transport)
    assert transport.drop(ids[:2], DropReason.STALE) == ids[:2]
    assert transport.drop(ids, DropReason.FENCED) == ids[2:]
    assert counts(transport, "dropped_stale", "fenced", "stream_entries") == (2, 1, 0)


def test_a_sequence_is_accepted_once(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    assert put(transport, 0, 0, 2, 1) == [OK, DUPLICATE, OK, DUPLICATE]
    assert put(transport, 0, actor="b") == [OK]
    assert put(transport, 0, incarnation=1) == [OK]
    deliveries = transport.take(100, 0)
    assert [d.payload for d in deliveries] == [b"payload"] * 4  # duplicates left the accepted payloads alone
    transport.ack([d.entry_id for d in deliveries])
    assert put(transport, 2) == [DUPLICATE]  # also when it is long settled
    assert counts(transport, "accepted", "trained") == (4, 4)


def test_a_full_queue_is_busy_until_something_is_taken(open_transport: Connect) -> None:
    transport = open_transport(max_episodes=2)
    transport.open_generation(-1, "learner")
    assert put(transport, 0, 1) == [OK, OK]
    reply = transport.put(header(2), b"payload")
    assert reply.status is BUSY
    assert reply.retry_s > 0
    take_ids(transport, 1)
    assert put(transport, 2) == [OK]
    assert counts(transport, "accepted", "queued", "pending") == (3, 2, 1)


def test_bytes_are_bounded_but_an_empty_queue_takes_any_episode(open_transport: Connect) -> None:
    transport = open_transport(max_bytes=10)
    transport.open_generation(-1, "learner")
    assert put(transport, 0, payload=b"x" * 20) == [OK]
    assert put(transport, 1, payload=b"x") == [BUSY]
    take_ids(transport)
    assert put(transport, 1, 2, payload=b"x" * 5) == [OK, OK]
    assert put(transport, 3, payload=b"x") == [BUSY]
    assert counts(transport, "queued_bytes") == (10,)


def test_an_oversize_episode_goes_to_the_dead_letters(open_transport: Connect) -> None:
    transport = open_transport(max_episode_bytes=10)
    transport.open_generation(-1, "learner")
    assert put(transport, 0, payload=b"x" * 11) == [OK]
    (letter,) = transport.dead_letters()
    assert letter.payload == b""
    assert "11 bytes" in letter.reason
    with pytest.raises(KeyError):
        transport.requeue(letter.dead_id)
    assert counts(transport, "accepted", "dead_lettered", "queued") == (1, 1, 0)


def test_take_waits_for_a_put(open_transport: Connect) -> None:
    learner, actor = open_transport(), open_transport()
    learner.open_generation(-1, "learner")
    timer = threading.Timer(0.15, lambda: put(actor, 0))
    timer.start()
    started = time.monotonic()
    assert len(learner.take(5, 5.0)) == 1
    assert 0.1 < time.monotonic() - started < 2.0
    timer.join()
    started = time.monotonic()
    assert learner.take(5, 0.2) == []
    assert 0.15 < time.monotonic() - started < 1.0


def test_a_corrupt_episode_is_set_aside_and_harms_no_other(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    episodes = [make_episode(n, sequence=n) for n in range(3)]
    payloads = [encode_episode(episode) for episode in episodes]
    payloads[1] = payloads[1][:200] + b"\x00" + payloads[1][201:]
    for episode, payload in zip(episodes, payloads, strict=True):
        transport.put(EpisodeHeader.of(episode), payload)
    trained, buried = [], []
    for delivery in transport.take(3, 0):
        try:
            decode_episode(delivery.payload)
            trained.append(delivery.entry_id)
        except InvalidEpisode as error:
            buried += [transport.dead_letter(delivery.entry_id, str(error)) for _ in range(2)]
    assert buried == [True, False]
    assert transport.ack(trained) == trained
    assert len(trained) == 2
    (letter,) = transport.dead_letters()
    assert letter.payload == payloads[1]
    assert letter.header == EpisodeHeader.of(episodes[1])
    assert "checksum" in letter.reason
    assert counts(transport, "trained", "dead_lettered", "pending", "dead_bytes") == (2, 1, 0, len(payloads[1]))


def test_a_dead_letter_can_be_queued_again(open_transport: Connect) -> None:
    transport = open_transport(max_episodes=1)
    transport.open_generation(-1, "learner")
    put(transport, 0)
    (entry_id,) = take_ids(transport)
    transport.dead_letter(entry_id, "a bug since mended")
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


def test_dead_letters_are_bounded_by_number_and_bytes(open_transport: Connect) -> None:
    transport = open_transport(dead_letters_kept=2, max_bytes=10)
    transport.open_generation(-1, "learner")
    for sequence, size in enumerate((1, 1, 1, 9, 4)):
        put(transport, sequence, payload=b"x" * size)
        transport.dead_letter(take_ids(transport)[0], f"reason {sequence}")
    assert [letter.reason for letter in transport.dead_letters()] == ["reason 4"]
    assert counts(transport, "dead_lettered", "dead_letters_evicted", "dead_bytes") == (5, 4, 4)


def test_a_restart_finds_pending_entries_and_their_attempts(open_transport: Connect) -> None:
    crashed = open_transport()
    crashed.open_generation(-1, "learner-1")
    put(crashed, 0, 1)
    ids = take_ids(crashed)
    assert crashed.begin_attempt(ids[0]) == 1
    restarted = open_transport()
    assert restarted.open_generation(0, "learner-2") == Generation(2, 1)
    assert [(d.entry_id, d.payload) for d in restarted.pending()] == [(entry_id, b"payload") for entry_id in ids]
    assert [restarted.begin_attempt(entry_id) for entry_id in (*ids, ids[0], "1-1")] == [2, 1, 3, 0]
    assert restarted.ack(ids) == ids
    assert restarted.pending() == []
    assert restarted.begin_attempt(ids[0]) == 0
    assert counts(restarted, "trained") == (2,)


def test_an_older_generation_is_refused_everything(open_transport: Connect) -> None:
    old, new = open_transport(), open_transport()
    with pytest.raises(Fenced):
        old.take(1, 0)
    old.open_generation(-1, "learner")
    put(old, 0)
    ids = take_ids(old)
    new.open_generation(0, "learner")
    for verb in (
        lambda: old.take(1, 0),
        old.pending,
        lambda: old.begin_attempt(ids[0]),
        lambda: old.ack(ids),
        lambda: old.drop(ids, DropReason.STALE),
        lambda: old.dead_letter(ids[0], "reason"),
        lambda: old.publish(make_weights(0, generation=1)),
    ):
        with pytest.raises(Fenced):
            verb()
    assert new.ack(ids) == ids


def test_a_waiting_learner_learns_that_it_was_replaced(open_transport: Connect) -> None:
    old, new = open_transport(), open_transport()
    old.open_generation(-1, "learner")
    timer = threading.Timer(0.1, lambda: (new.open_generation(0, "other"), put(new, 0)))
    timer.start()
    with pytest.raises(Fenced):
        old.take(1, 5.0)
    timer.join()
    assert len(new.take(1, 0)) == 1  # the old one took nothing away


def test_episodes_of_a_lost_lineage_are_fenced(open_transport: Connect) -> None:
    old, new = open_transport(), open_transport()
    old.open_generation(-1, "learner")
    for version in range(6):
        old.publish(make_weights(version))
    for sequence, version in enumerate((2, 5, 3, 4)):
        put(old, sequence, version=version)
    taken = old.take(2, 0)
    assert new.open_generation(3, "learner") == Generation(2, 6)
    assert [d.header.newest_version for d in new.pending()] == [2]
    assert [d.header.newest_version for d in new.take(9, 0)] == [3]
    assert counts(new, "accepted", "fenced", "pending", "queued", "queued_bytes") == (4, 2, 2, 0, 0)
    assert put(new, 4, version=5) == [FENCED]
    assert put(new, 5, version=3) == [OK]
    assert put(new, 6, version=6, generation=2) == [OK]
    assert put(new, 7, version=0, generation=3) == [FENCED]  # a generation that this store never opened
    assert new.ack([d.entry_id for d in taken]) == [taken[0].entry_id]


def test_a_fence_outlives_the_generations_after_it(open_transport: Connect) -> None:
    transport = open_transport()
    for went_back_to in (-1, 2, 9):
        transport.open_generation(went_back_to, "learner")
    assert put(transport, 0, version=5, generation=1) == [FENCED]  # lost when the second generation opened
    assert put(transport, 1, version=5, generation=2) == [OK]
    assert put(transport, 2, version=2, generation=1) == [OK]


def test_an_episode_across_versions_is_judged_by_its_newest(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    transport.open_generation(3, "learner")
    mixed = make_episode(steps=2, policy_version=np.array([3, 4]))
    assert transport.put(EpisodeHeader.of(mixed), b"payload").status is FENCED


def test_a_fenced_dead_letter_stays_dead(open_transport: Connect) -> None:
    transport = open_transport()
    transport.open_generation(-1, "learner")
    put(transport, 0, version=7)
    transport.dead_letter(take_ids(transport)[0], "reason")
    transport.open_generation(3, "learner")
    assert transport.requeue(transport.dead_letters()[0].dead_id) is FENCED
    assert counts(transport, "dead_lettered") == (1,)


def test_a_store_that_lost_its_memory_goes_on_after_the_checkpoint(transport: Transport) -> None:
    assert transport.open_generation(40, "learner", floor=Generation(6, 50)) == Generation(7, 50)
    assert put(transport, 0, generation=6, version=41) == [FENCED]
    assert put(transport, 1, generation=6, version=40) == [OK]


def test_reports_close_each_actors_account(open_transport: Connect) -> None:
    transport = open_transport(max_episodes=2)
    transport.open_generation(-1, "learner")
    put(transport, 0, 1, 2, 3)
    transport.report("a", 0, produced=5, dropped_backpressure=1, refused_fenced=0, unsent=2)
    transport.ack(take_ids(transport))
    put(transport, 4, 5, 6)  # one of the unsent two, one more, one refused as busy
    transport.ledger().check()
    assert transport.ledger().actors["a", 0] == ActorLedger(5, 4, 0, 1, 0, 0)
    transport.report("a", 0, produced=7, dropped_backpressure=1, refused_fenced=0, unsent=2)
    transport.report("a", 1, produced=0, dropped_backpressure=0, refused_fenced=0, unsent=0)
    transport.ledger().check()
    assert transport.ledger().actors == {("a", 0): ActorLedger(7, 4, 0, 1, 0, 2), ("a", 1): ActorLedger()}


def test_a_wrong_report_fails_the_check(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    put(transport, 0)
    transport.report("a", 0, produced=3, dropped_backpressure=0, refused_fenced=0, unsent=1)
    with pytest.raises(LedgerError, match="actor a"):
        transport.ledger().check()


def test_weights_are_published_fetched_and_few_are_kept(open_transport: Connect) -> None:
    learner, actor = open_transport(weights_kept=2), open_transport()
    assert actor.head() == -1
    assert actor.fetch(-1) is None
    generation = learner.open_generation(-1, "learner")
    for version in range(generation.next_version, 4):
        learner.publish(make_weights(version, generation.number))
    learner.publish(make_weights(3))  # the same again changes nothing
    for repeated in (make_weights(3, tensors={}), make_weights(1)):
        with pytest.raises(ValueError, match="not newer"):
            learner.publish(repeated)
    assert actor.head() == 3
    assert actor.fetch(3) is None
    weights = actor.fetch(1)
    assert weights is not None
    expected = make_weights(3)
    assert dataclasses.replace(weights, tensors={}) == dataclasses.replace(expected, tensors={})
    assert all(np.array_equal(weights.tensors[name], tensor) for name, tensor in expected.tensors.items())
    assert put(actor, 0) == [OK]
    assert actor.put(header(1), b"x").head_version == 3


def test_versions_never_repeat(open_transport: Connect) -> None:
    transport = open_transport()
    seen = []
    for went_back_to in (-1, 1, 0):
        generation = transport.open_generation(went_back_to, "learner")
        for version in range(generation.next_version, generation.next_version + 3):
            transport.publish(make_weights(version, generation.number))
            seen.append(version)
    assert seen == list(range(9))


def test_the_ledger_is_exact_while_threads_hurry(open_transport: Connect) -> None:
    learner, watcher = open_transport(max_episodes=4), open_transport()
    learner.open_generation(-1, "learner")
    wanted = 60

    def produce(actor: str) -> None:
        transport = open_transport(max_episodes=4)
        for sequence in range(wanted):
            while transport.put(header(sequence, actor=actor), b"payload").status is BUSY:
                time.sleep(0.001)

    threads = [threading.Thread(target=produce, args=(actor,)) for actor in ("a", "b")]
    for thread in threads:
        thread.start()
    trained: list[str] = []
    deadline = time.monotonic() + 20
    while len(trained) < 2 * wanted and time.monotonic() < deadline:
        watcher.ledger().check()
        deliveries = learner.take(7, 0.05)
        watcher.ledger().check()
        learner.ack([d.entry_id for d in deliveries])
        trained += [d.header.episode_id for d in deliveries]
    for thread in threads:
        thread.join()
    assert sorted(trained) == sorted(f"run/{actor}/0/{n}" for actor in "ab" for n in range(wanted))
    assert counts(watcher, "accepted", "trained") == (2 * wanted, 2 * wanted)


class TestRedisAlone:
    """What only a server can do: lose replies, hold foreign entries, restart, refuse."""

    @pytest.fixture(params=[False, True], ids=["functions", "scripts"])
    def transport(
        self, embedded_redis: EmbeddedRedis, namespace: str, request: pytest.FixtureRequest
    ) -> RedisTransport:
        transport = connect(embedded_redis.url, QueueConfig(payload_ttl_s=1), namespace, scripts=request.param)
        transport.open_generation(-1, "learner")
        return transport

    @pytest.fixture
    def client(self, embedded_redis: EmbeddedRedis) -> Any:
        return redis.Redis.from_url(embedded_redis.url)

    def test_foreign_entries_are_counted_apart(self, transport: RedisTransport, client: Any, namespace: str) -> None:
        stream = f"{{{namespace}}}:episodes"
        client.xadd(stream, {"hello": "world"})
        put(transport, 0)
        client.xadd(stream, {"episode": "x", "actor": "a", "incarnation": "none"})
        assert len(transport.take(9, 0)) == 1
        assert counts(transport, "foreign", "accepted", "pending", "stream_entries") == (2, 1, 1, 1)

    def test_a_lost_entry_fails_the_check(self, transport: RedisTransport, client: Any, namespace: str) -> None:
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

    def test_only_accepted_payloads_outlive_their_expiry(
        self, transport: RedisTransport, client: Any, namespace: str
    ) -> None:
        put(transport, 0, 0)
        put(transport, 1, generation=9)
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
    def test_a_verb_whose_reply_was_lost_is_not_done_twice(
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

    def test_nothing_settled_is_left_behind(
        self, transport: RedisTransport, client: Any, embedded_redis: EmbeddedRedis, namespace: str
    ) -> None:
        transport = connect(embedded_redis.url, QueueConfig(dead_letters_kept=1, weights_kept=2), namespace)
        generation = transport.open_generation(-1, "learner").number
        for version in range(4):
            transport.publish(make_weights(version, generation))
        put(transport, 0, 1, 2, 3, generation=generation)
        put(transport, 4, 5, version=3, generation=generation)
        trained, stale, *buried = take_ids(transport, 5)
        for entry_id in (trained, stale, *buried):
            transport.begin_attempt(entry_id)
        transport.ack([trained])
        transport.drop([stale], DropReason.STALE)
        for entry_id in buried[:2]:
            transport.dead_letter(entry_id, "reason")
        transport.open_generation(0, "learner")  # fences the last two, one of them pending
        assert counts(transport, "trained", "dropped_stale", "dead_lettered", "fenced") == (1, 1, 2, 2)
        kept = {"payload:run/a/0/3", f"weights:{generation}:2", f"weights:{generation}:3"}
        named = {"episodes", "ledger", "generations", "weights", "dead", "replies"}
        assert {key.decode().partition(":")[2] for key in client.keys(f"{{{namespace}}}:*")} == kept | named

    def test_a_payload_that_is_not_the_one_put_is_put_again(
        self, transport: RedisTransport, client: Any, namespace: str
    ) -> None:
        client.set(f"{{{namespace}}}:payload:run/a/0/0", b"cut", px=10_000)
        assert put(transport, 0) == [OK]
        assert [d.payload for d in transport.take(1, 0)] == [b"payload"]

    def test_a_server_without_functions_gets_scripts(
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
        with pytest.raises(InvalidWeights, match="sha256"):
            transport.fetch(-1)

    def test_a_server_that_went_away_is_unreachable(self, namespace: str) -> None:
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


def test_the_password_may_come_from_the_environment(
    embedded_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    password, bare = embedded_redis.url.removeprefix("unix://:").split("@")
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", password)
    connect(f"unix://{bare}").close()
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", "wrong")
    with pytest.raises(UserError, match="TAMIYO_REDIS_PASSWORD"):
        connect(f"unix://{bare}")
    monkeypatch.delenv("TAMIYO_REDIS_PASSWORD")
    with pytest.raises(UserError, match="refused the login"):
        connect(f"unix://{bare}")


@pytest.mark.parametrize(
    "url", ["redis://:secret@127.0.0.1:1/0", "unix://:secret@/nowhere/redis.sock", "http://h:1", "redis://[::1"]
)
def test_a_server_that_is_not_there_gives_one_clear_line(url: str) -> None:
    with pytest.raises(UserError) as raised:
        connect(url)
    message = str(raised.value)
    assert "\n" not in message
    assert "secret" not in message
    assert "start one there" in message or "give redis://" in message
