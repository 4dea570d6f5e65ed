"""What holders of the actors' password may write to the store does not stop a run; on all servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.config import QueueConfig
from actors.transport.base import Malformed, StoreReset
from actors.transport.ledger import MAX_FIELDS
from actors.transport.redis import RedisTransport, connect
from tests.conftest import OTHERS
from tests.support.learning.toy_learner import ToyProducer, make_learner
from tests.support.queueing import BUSY, OK, counts, put, report, take_ids
from tests.support.small_queue import SmallQueue

pytestmark = pytest.mark.integration
LARGEST = f"{2**64 - 1}-{2**64 - 1}"


@pytest.fixture(params=["valkey", "valkey-scripts", *OTHERS])
def learner(request: pytest.FixtureRequest, server_urls: dict[str, str], namespace: str) -> Iterator[RedisTransport]:
    transport = connect(server_urls[request.param], QueueConfig(max_episodes=8), namespace, "scripts" in request.param)
    transport.open_generation(-1, "learner")
    yield transport
    transport.close()


def write(transport: RedisTransport, command: str, key: str, *args: str | int) -> None:
    """Execute a command on a key to which actors may write."""
    transport._queue.client.execute_command(command, transport._queue.key(key), *args)


@pytest.mark.parametrize("field", ["queued", "queued_bytes", "pending", "turn", "store"])
@pytest.mark.parametrize("value", [10**15, -(10**15), 0, 7])
def test_counts_that_an_actor_wrote_decide_nothing(learner: RedisTransport, field: str, value: int) -> None:
    put(learner, 0, 1, 2)
    (taken,) = take_ids(learner, 1)
    write(learner, "HSET", "ledger", field, value)
    put(learner, 3)  # perhaps BUSY, until the waiting episodes were taken
    others = take_ids(learner)
    assert put(learner, 4, 5) == [OK, OK]
    assert learner.ack([taken, *others]) == [taken, *others]
    assert len(learner.ack(take_ids(learner))) == 2
    trained, missing, queued, queued_bytes, pending = counts(
        learner, "trained", "missing", "queued", "queued_bytes", "pending"
    )
    assert (trained, missing, queued, queued_bytes, pending) == (3 + len(others), 0, 0, 0, 0)


def test_episodes_that_an_actor_trimmed_are_counted_as_missing(learner: RedisTransport) -> None:
    put(learner, 0, 1, 2, 3, 4)
    taken = take_ids(learner, 2)
    write(learner, "XADD", "episodes", "MAXLEN", 0, "*", "x", "y")
    assert take_ids(learner) == []
    assert learner.ledger().missing == 3
    assert learner.ack(taken) == taken  # the learner has them
    assert put(learner, 5, 6) == [OK, OK]
    assert len(learner.ack(take_ids(learner))) == 2
    assert counts(learner, "accepted", "trained", "missing", "foreign") == (7, 4, 3, 0)


def test_a_trimmed_queue_does_not_stay_full(learner: RedisTransport) -> None:
    assert put(learner, *range(9))[-2:] == [OK, BUSY]
    write(learner, "XADD", "episodes", "MAXLEN", 0, "*", "x", "y")
    assert put(learner, 8) == [OK]


def test_pending_entries_that_an_actor_trimmed_are_counted_when_the_queue_is_taken_over(
    learner: RedisTransport,
) -> None:
    put(learner, 0, 1)
    take_ids(learner, 2)
    write(learner, "XADD", "episodes", "MAXLEN", 0, "*", "x", "y")
    learner.open_generation(0, "next")
    assert learner.pending() == []
    assert counts(learner, "pending", "missing", "foreign") == (0, 2, 0)


def test_the_largest_id_in_the_queue_is_survived(learner: RedisTransport) -> None:
    put(learner, 0, 1, 2)
    (taken,) = take_ids(learner, 1)
    write(learner, "XADD", "episodes", LARGEST, "x", "y")
    assert put(learner, 3) == [BUSY]
    with pytest.raises(StoreReset, match="used up"):
        learner.take(1, 0)
    learner.open_generation(0, "next")
    assert [d.entry_id for d in learner.pending()] == [taken]
    assert put(learner, 3, 4) == [OK, OK]
    others = take_ids(learner)
    assert learner.ack([taken, *others]) == [taken, *others]
    assert counts(learner, "accepted", "trained", "missing") == (5, 5, 0)


def test_the_largest_id_among_the_dead_letters_is_survived(learner: RedisTransport) -> None:
    put(learner, 0, 1, 2)
    first, second, third = take_ids(learner)
    assert learner.dead_letter(first, "kept")
    write(learner, "XADD", "dead", LARGEST, "x", "y")
    assert put(learner, 3, payload=bytes(learner.max_episode_bytes + 1)) == [BUSY]
    with pytest.raises(StoreReset, match="used up"):
        learner.dead_letter(second, "reason")
    learner.open_generation(0, "next")
    assert learner.dead_letter(second, "reason")
    assert put(learner, 3, payload=bytes(learner.max_episode_bytes + 1)) == [OK]
    assert [letter.reason for letter in learner.dead_letters()][:2] == ["kept", "reason"]
    assert learner.ack([third]) == [third]
    assert counts(learner, "accepted", "dead_lettered", "trained") == (4, 3, 1)


def test_a_learner_trains_on_after_every_such_write(learner: RedisTransport, tmp_path: Path) -> None:
    trainer, producer = make_learner(tmp_path, learner, updates=6), ToyProducer(learner)
    writes = {
        1: ("XADD", "episodes", "MAXLEN", 0, "*", "x", "y"),
        2: ("XADD", "episodes", LARGEST, "x", "y"),
        3: ("XADD", "dead", LARGEST, "x", "y"),
        4: ("HSET", "ledger", "queued", 10**9, "turn", 0, "store", 7),
    }

    def attack() -> bool:
        if command := writes.pop(trainer.progress.update, None):
            write(learner, *command)
        return producer()

    assert trainer.run(attack).update == 6
    assert not writes
    counts(learner)


def test_an_incarnation_number_that_an_actor_wrote_does_not_use_up_the_numbers(learner: RedisTransport) -> None:
    first = learner.new_incarnation("a").number
    for number in (999_999_999_999_999, 10**16, 2**53, "x"):
        write(learner, "HSET", "ledger", "actor:a:incarnation", number)
        for _ in range(2):
            second = learner.new_incarnation("a").number
            assert second > first
            assert put(learner, 0, incarnation=second) == [OK]
        learner.ack(take_ids(learner))


def test_a_full_ledger_refuses_new_names_and_serves_known_ones(learner: RedisTransport) -> None:
    for actor in ("a", "b"):
        learner.new_incarnation(actor)
    put(learner, 0, 1)
    fill(learner, 20_000, "actor:evil{}/1:produced")
    refused = (
        lambda: learner.new_incarnation("new"),
        lambda: put(learner, 0, actor="new"),
        lambda: report(learner, 1, actor="new"),
        lambda: report(learner, 2, actor="b"),  # an older incarnation without a row
    )
    for call in refused:
        with pytest.raises(Malformed, match="fewer names"):
            call()
    number = learner.new_incarnation("a").number
    assert put(learner, 0, incarnation=number) == [OK]
    report(learner, number, produced=1, accepted=1)
    assert len(learner.ledger().actors) > 20_000


def test_rows_beyond_a_limit_are_not_read(learner: RedisTransport) -> None:
    put(learner, 0, 1)
    fill(learner, MAX_FIELDS, "actor:evil{}/1:produced")
    fill(learner, MAX_FIELDS + 1, "evil{}/1", "health", '{"reported_s": 1}')
    learner.report_learner({"update": 3})
    assert counts(learner, "accepted", "queued") == (2, 2)
    assert learner.ledger().actors == learner.health().actors == {}
    assert learner.health().learner["update"] == 3
    assert learner.ledger().unreadable > MAX_FIELDS
    assert learner.health().unreadable > MAX_FIELDS
    learner.open_generation(0, "next")
    assert len(take_ids(learner)) == 2


def fill(transport: RedisTransport, count: int, field: str, key: str = "ledger", value: str = "1") -> None:
    for start in range(0, count, 5000):
        pairs = [text for n in range(start, min(count, start + 5000)) for text in (field.format(n), value)]
        write(transport, "HSET", key, *pairs)


def test_the_limits_are_the_runs_and_not_the_callers(learner: RedisTransport, server_urls: dict[str, str]) -> None:
    large = SmallQueue(max_episodes=10**6, max_bytes=2**40, max_episode_bytes=2**28, dead_letters_kept=10**6)
    small = SmallQueue(max_episodes=1, max_bytes=1, max_episode_bytes=1, dead_letters_kept=1)
    for config in (large, small):
        actor = RedisTransport(learner._queue, learner._queue, config)
        assert put(actor, *range(9), actor=f"a{config.max_episodes}") == [OK] * 8 + [BUSY]
        take_ids(learner)
    oversize = bytes(learner.max_episode_bytes + 1)
    assert put(RedisTransport(learner._queue, learner._queue, large), 0, actor="b", payload=oversize) == [OK]
    assert counts(learner, "dead_lettered", "dead_bytes") == (1, 0)
