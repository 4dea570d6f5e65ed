"""Invalid reports, episodes and rows from a faulty actor stop neither the learner nor `tamiyo status`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from actors.codec import encode_episode
from actors.transport.base import EpisodeHeader, Malformed, Transport
from actors.transport.ledger import ActorLedger
from actors.transport.redis import RedisTransport, connect
from deploy.commands.admin.dead_letters import dead_letters
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.intake import Intake
from tests.conftest import Connect
from tests.support.learning.toy import toy_network, toy_seed, toy_wave
from tests.support.learning.toy_learner import ToyProducer, make_learner, toy_schema
from tests.support.queueing import OK, counts, header, put, report, take_ids
from tests.support.small_queue import SmallQueue

pytestmark = pytest.mark.integration

VALID_REPORT = ("actor9", 1, 0, 0, 0, 0, 0, '{"reported_s": 1.0}', 0)
MAX_INTEGER = 2**53 - 1


@pytest.mark.parametrize(
    ("actor", "incarnation", "totals", "health"),
    [
        ("my actor", 1, ActorLedger(), {}),
        ("a/b", 1, ActorLedger(), {}),
        ("a", MAX_INTEGER, ActorLedger(), {}),
        ("a", MAX_INTEGER + 1, ActorLedger(), {}),
        ("a", -1, ActorLedger(), {}),
        ("a", 1, ActorLedger(-1, -1), {}),
        ("a", 1, ActorLedger(MAX_INTEGER + 1), {}),
        ("a", 1, ActorLedger(), {"version": float("nan")}),
        ("a", 1, ActorLedger(), {"version": float("-inf")}),
    ],
)
def test_an_invalid_report_changes_nothing(
    transport: Transport, actor: str, incarnation: int, totals: ActorLedger, health: dict[str, float]
) -> None:
    transport.open_generation(-1, "learner")
    report(transport, 1, produced=2, unsent=2)
    before = transport.ledger(), transport.health().actors
    with pytest.raises(Malformed):
        transport.report(actor, incarnation, totals, health)
    assert (transport.ledger(), transport.health().actors) == before


def test_an_incarnation_from_the_far_future_is_rejected(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    now = time.time_ns() // 1_000_000
    assert put(transport, 0, incarnation=now + 60_000) == [OK]
    with pytest.raises(Malformed, match="ahead"):
        put(transport, 0, incarnation=MAX_INTEGER)
    assert set(transport.ledger().actors) == {("a", now + 60_000)}


def test_episodes_of_unpublished_versions_become_dead_letters(open_transport: Connect) -> None:
    """Their lag is negative, so no limit on the lag would ever drop them."""
    transport = open_transport()
    generation = transport.open_generation(-1, "learner").number
    waves = toy_wave(toy_network(), [toy_seed(3, truncated=False, salt=i) for i in range(3)], generation=generation)
    for episode, version in zip(waves, (4, 5, 2**40), strict=True):
        episode = dataclasses.replace(episode, policy_version=np.full(len(episode), version))
        assert transport.put(EpisodeHeader.from_episode(episode), encode_episode(episode)).status is OK
    intake = Intake(transport, toy_schema(), max_policy_lag=4)
    should_stop = iter([False] * 3 + [True] * 9)
    assert intake.collect(2, 4, lambda: next(should_stop)) is None  # only one is valid
    assert [letter.reason for letter in transport.dead_letters()] == [
        f"it was acted by weights {version}, but the newest are 4" for version in (5, 2**40)
    ]
    assert counts(transport, "dead_lettered", "pending") == (2, 1)
    assert intake.dead_lettered == len(intake.notes) == 2


@pytest.fixture(params=[False, True], ids=["functions", "scripts"])
def redis_transport(embedded_redis: EmbeddedRedis, namespace: str, request: pytest.FixtureRequest) -> RedisTransport:
    return connect(embedded_redis.url, SmallQueue(dead_letters_kept=1), namespace, scripts=request.param)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, "x y"),
        (0, "[bold]"),
        (1, "x"),
        (1, "1e3"),
        (1, "01"),
        (1, "9" * 400),
        (2, "x"),
        (3, "-1"),
        (6, "nan"),
        (7, "not json"),
        (7, "7"),
        (7, "null"),
        (7, "[1]"),
        (7, "{}"),
        (7, '{"reported_s": "now"}'),
        (7, '{"reported_s": {}}'),
        (7, '{"reported_s": 1e999}'),
        (7, "[" * 5000),
        (7, '{"reported_s": 1, "x": "' + "x" * 20_000 + '"}'),
    ],
)
def test_the_store_itself_checks_reports(redis_transport: RedisTransport, position: int, value: str) -> None:
    """Clients of other versions, or other programs, may not have checked it."""
    redis_transport.open_generation(-1, "learner")
    arguments = [*VALID_REPORT[:position], value, *VALID_REPORT[position + 1 :]]
    with pytest.raises(Malformed):
        redis_transport._queue.call("report", *arguments)
    with pytest.raises(Malformed):
        redis_transport._queue.call("report", *VALID_REPORT[:-1])
    assert redis_transport.ledger().actors == redis_transport.health().actors == {}
    redis_transport._queue.call("report", *VALID_REPORT)
    assert redis_transport.health().actors == {("actor9", 1): {"reported_s": 1.0}}


BAD_HEALTH = {
    "a/7": "not json",
    "a/8": '{"reported_s": NaN}',
    "a/9": '{"reported_s": "now"}',
    "a/10": "{}",
    "a/x": '{"reported_s": 1}',
    "a b/1": '{"reported_s": 1}',
    "a": '{"reported_s": 1}',
    "learner": "[]",
    b"\xff/1": b"\xff",
    "a/11": '{"reported_s": 1' + "0" * 400 + "}",
}
BAD_LEDGER = {
    "unknown": "1",
    "actor:a/1:accepted": "x",
    "actor:a/x:accepted": "1",
    "actor:a b/1:unsent": "1",
    b"\xff": b"\xff",
}


def test_unreadable_rows_are_skipped_and_counted(
    redis_transport: RedisTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, key = redis_transport._queue.client, redis_transport._queue.key
    learner, producer = make_learner(tmp_path, redis_transport, updates=3), ToyProducer(redis_transport)

    def corrupt_rows() -> bool:
        if learner.progress.update == 2:
            client.hset(key("health"), mapping=BAD_HEALTH)
            client.hset(key("ledger"), mapping=BAD_LEDGER)
        return producer()

    learner.run(corrupt_rows)
    assert learner.progress.update == 3
    health, ledger = redis_transport.health(), redis_transport.ledger()
    assert (health.unreadable, set(health.actors)) == (
        len(BAD_HEALTH) - 1,
        {("actor0", 0)},
    )  # the learner's is rewritten
    assert (ledger.unreadable, set(ledger.actors)) == (len(BAD_LEDGER), {("actor0", 0)})
    ledger.check()
    assert caplog.text.count("of the store's health that Tamiyo did not write") == 1
    resumed = make_learner(tmp_path, redis_transport, resume=True, updates=4)
    assert resumed.run(producer).update == 4


@pytest.mark.parametrize("field", ["queued", "pending", "trained", "actor:a:incarnation"])
def test_the_queue_works_with_a_corrupt_ledger_field(redis_transport: RedisTransport, field: str) -> None:
    """The role `actor` has write access to the ledger, since its verbs need it. The identities no longer hold then."""
    redis_transport.open_generation(-1, "learner")
    put(redis_transport, 0, 1)
    redis_transport._queue.client.hset(redis_transport._queue.key("ledger"), field, "corrupt")
    redis_transport.ack(take_ids(redis_transport, 1))
    take_ids(redis_transport)
    assert put(redis_transport, 2, incarnation=1) == [OK]
    redis_transport.open_generation(0, "learner")
    assert len(redis_transport.pending()) + len(redis_transport.take(9, 0)) == 2


def test_foreign_entries_among_the_dead_letters_are_skipped(
    redis_transport: RedisTransport, caplog: pytest.LogCaptureFixture
) -> None:
    redis_transport.open_generation(-1, "learner")
    client, key = redis_transport._queue.client, redis_transport._queue.key
    for fields in ({"foo": "bar"}, {"ref": "1 1 0 0 7 run/a b/0/1", "reason": "x"}, {"ref": "1 1 0 0 7 run/a/0/9"}):
        client.xadd(key("dead"), fields)
    put(redis_transport, 0, 1)
    for entry_id in take_ids(redis_transport):
        assert redis_transport.dead_letter(entry_id, "reason")
        assert [letter.reason for letter in redis_transport.dead_letters()] == ["reason"]
    assert redis_transport.dead_letters()[0].header == header(1)
    assert counts(redis_transport, "dead_lettered", "foreign", "dead_bytes") == (2, 2, 7)
    client.xadd(key("dead"), {"foo": "bar"})
    assert len(redis_transport.dead_letters()) == 1
    assert "dead letters that Tamiyo did not write" in caplog.text


@pytest.mark.parametrize("reason", ["[/]", "[bold red]not markup[/bold red]", "\x1b[2Jcleared\x07\r\nline"])
def test_reasons_are_printed_literally(
    embedded_redis: EmbeddedRedis, namespace: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = connect(embedded_redis.url, None, namespace)
    transport.open_generation(-1, "learner")
    put(transport, 0)
    (entry_id,) = take_ids(transport)
    transport.dead_letter(entry_id, reason)
    (letter,) = transport.dead_letters()
    for action, ids in (("list", []), ("show", [letter.dead_id])):
        assert dead_letters(action, embedded_redis.url, namespace, ids, None) == 0
        shown = capsys.readouterr().out
        assert "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in reason) in shown
        assert "\x1b" not in shown
