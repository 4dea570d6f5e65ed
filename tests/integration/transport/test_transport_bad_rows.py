"""What a faulty actor reports, puts or writes straight into the store ends neither the learner nor whoever looks."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from actors.codec import encode_episode
from actors.config import QueueConfig
from actors.transport.base import EpisodeHeader, Malformed, StoreReset, Transport
from actors.transport.ledger import ActorLedger
from actors.transport.redis import RedisTransport, connect
from deploy.commands.dead_letters import dead_letters
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.intake import Intake
from tests.conftest import Connect
from tests.support.queueing import OK, counts, header, put, report, take_ids
from tests.support.toy import toy_network, toy_seed, toy_wave
from tests.support.toy_learner import ToyProducer, make_learner, toy_schema

pytestmark = pytest.mark.integration

GOOD = ("actor9", 1, 0, 0, 0, 0, 0, '{"told_s": 1.0}')
LARGEST = 2**53 - 1


@pytest.mark.parametrize(
    ("actor", "incarnation", "totals", "health"),
    [
        ("my actor", 1, ActorLedger(), {}),
        ("a/b", 1, ActorLedger(), {}),
        ("a", LARGEST, ActorLedger(), {}),
        ("a", LARGEST + 1, ActorLedger(), {}),
        ("a", -1, ActorLedger(), {}),
        ("a", 1, ActorLedger(-1, -1), {}),
        ("a", 1, ActorLedger(LARGEST + 1), {}),
        ("a", 1, ActorLedger(), {"version": float("nan")}),
        ("a", 1, ActorLedger(), {"version": float("-inf")}),
    ],
)
def test_a_report_that_is_none_changes_nothing(
    transport: Transport, actor: str, incarnation: int, totals: ActorLedger, health: dict[str, float]
) -> None:
    transport.open_generation(-1, "learner")
    report(transport, 1, produced=2, unsent=2)
    before = transport.ledger(), transport.health().actors
    with pytest.raises(Malformed):
        transport.report(actor, incarnation, totals, health)
    assert (transport.ledger(), transport.health().actors) == before


def test_an_incarnation_of_the_far_future_leaves_room_for_later_ones(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    now = time.time_ns() // 1_000_000
    assert put(transport, 0, incarnation=now + 60_000) == [OK]
    with pytest.raises(Malformed, match="ahead"):
        put(transport, 0, incarnation=LARGEST)
    assert set(transport.ledger().actors) == {("a", now + 60_000)}


def test_weights_that_are_yet_to_be_made_have_acted_no_episode(open_transport: Connect) -> None:
    """By lag alone such an episode would be fresh for ever, in this batch and in all later ones."""
    transport = open_transport()
    generation = transport.open_generation(-1, "learner").number
    waves = toy_wave(toy_network(), [toy_seed(3, truncated=False, salt=i) for i in range(3)], generation=generation)
    for episode, version in zip(waves, (4, 5, 2**40), strict=True):
        episode = dataclasses.replace(episode, policy_version=np.full(len(episode), version))
        assert transport.put(EpisodeHeader.of(episode), encode_episode(episode)).status is OK
    intake = Intake(transport, toy_schema(), max_policy_lag=4)
    looks = iter([False] * 3 + [True] * 9)
    assert intake.collect(2, 4, lambda: next(looks)) is None  # there is but one
    assert [letter.reason for letter in transport.dead_letters()] == [
        f"it was acted by weights {version}, and 4 are the newest" for version in (5, 2**40)
    ]
    assert counts(transport, "dead_lettered", "pending") == (2, 1)
    assert intake.dead_lettered == len(intake.notes) == 2


@pytest.fixture(params=[False, True], ids=["functions", "scripts"])
def redis_alone(embedded_redis: EmbeddedRedis, namespace: str, request: pytest.FixtureRequest) -> RedisTransport:
    return connect(embedded_redis.url, QueueConfig(dead_letters_kept=1), namespace, scripts=request.param)


@pytest.mark.parametrize(
    ("place", "value"),
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
        (7, '{"told_s": "now"}'),
        (7, '{"told_s": {}}'),
        (7, '{"told_s": 1e999}'),
        (7, "[" * 5000),
        (7, '{"told_s": 1, "x": "' + "x" * 20_000 + '"}'),
    ],
)
def test_a_report_is_checked_where_it_arrives(redis_alone: RedisTransport, place: int, value: str) -> None:
    """Of a program that is not ours, or of another version."""
    redis_alone.open_generation(-1, "learner")
    arguments = [*GOOD[:place], value, *GOOD[place + 1 :]]
    with pytest.raises(Malformed):
        redis_alone._queue.call("report", *arguments)
    with pytest.raises(Malformed):
        redis_alone._queue.call("report", *GOOD[:-1])
    assert redis_alone.ledger().actors == redis_alone.health().actors == {}
    redis_alone._queue.call("report", *GOOD)
    assert redis_alone.health().actors == {("actor9", 1): {"told_s": 1.0}}


BAD_HEALTH = {
    "a/7": "not json",
    "a/8": '{"told_s": NaN}',
    "a/9": '{"told_s": "now"}',
    "a/10": "{}",
    "a/x": '{"told_s": 1}',
    "a b/1": '{"told_s": 1}',
    "a": '{"told_s": 1}',
    "learner": "[]",
    b"\xff/1": b"\xff",
    "a/11": '{"told_s": 1' + "0" * 400 + "}",
}
BAD_LEDGER = {
    "surprise": "1",
    "actor:a/1:accepted": "x",
    "actor:a/x:accepted": "1",
    "actor:a b/1:unsent": "1",
    b"\xff": b"\xff",
}


def test_rows_that_cannot_be_read_are_left_out_and_counted(
    redis_alone: RedisTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, key = redis_alone._queue.client, redis_alone._queue.key
    learner, producer = make_learner(tmp_path, redis_alone, updates=3), ToyProducer(redis_alone)

    def spoil() -> bool:
        if learner.progress.update == 2:
            client.hset(key("health"), mapping=BAD_HEALTH)
            client.hset(key("ledger"), mapping=BAD_LEDGER)
        return producer()

    learner.run(spoil)
    assert learner.progress.update == 3
    health, ledger = redis_alone.health(), redis_alone.ledger()
    assert (health.unreadable, set(health.actors)) == (len(BAD_HEALTH) - 1, {("actor0", 0)})  # the learner's is mended
    assert (ledger.unreadable, set(ledger.actors)) == (len(BAD_LEDGER), {("actor0", 0)})
    ledger.check()
    assert caplog.text.count("of the store's health are not Tamiyo's") == 1
    again = make_learner(tmp_path, redis_alone, resume=True, updates=4)
    assert again.run(producer).update == 4


@pytest.mark.parametrize("field", ["turn", "queued", "pending", "trained", "store", "actor:a:incarnation"])
def test_the_ledger_itself_may_be_spoilt(redis_alone: RedisTransport, field: str) -> None:
    """The role `actor` may write there, since its verbs do. The ledger no longer adds up then, but the queue works."""
    redis_alone.open_generation(-1, "learner")
    put(redis_alone, 0, 1)
    redis_alone._queue.client.hset(redis_alone._queue.key("ledger"), field, "spoilt")
    if field == "turn":
        with pytest.raises(StoreReset):
            redis_alone.take(1, 0)
        redis_alone.open_generation(0, "learner")
    redis_alone.ack(take_ids(redis_alone, 1))
    take_ids(redis_alone)
    assert put(redis_alone, 2, incarnation=1) == [OK]
    redis_alone.open_generation(0, "learner")
    assert len(redis_alone.pending()) + len(redis_alone.take(9, 0)) == 2


def test_a_strangers_dead_letter_hinders_no_other(
    redis_alone: RedisTransport, caplog: pytest.LogCaptureFixture
) -> None:
    redis_alone.open_generation(-1, "learner")
    client, key = redis_alone._queue.client, redis_alone._queue.key
    for fields in ({"foo": "bar"}, {"ref": "1 1 0 0 7 run/a b/0/1", "reason": "x"}, {"ref": "1 1 0 0 7 run/a/0/9"}):
        client.xadd(key("dead"), fields)
    put(redis_alone, 0, 1)
    for entry_id in take_ids(redis_alone):
        assert redis_alone.dead_letter(entry_id, "reason")
        assert [letter.reason for letter in redis_alone.dead_letters()] == ["reason"]
    assert redis_alone.dead_letters()[0].header == header(1)
    assert counts(redis_alone, "dead_lettered", "foreign", "dead_bytes") == (2, 2, 7)
    client.xadd(key("dead"), {"foo": "bar"})
    assert len(redis_alone.dead_letters()) == 1
    assert "dead letters are not Tamiyo's" in caplog.text


@pytest.mark.parametrize("reason", ["[/]", "[bold red]not markup[/bold red]", "\x1b[2Jcleared\x07\r\nline"])
def test_a_reason_is_shown_as_it_is(
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
