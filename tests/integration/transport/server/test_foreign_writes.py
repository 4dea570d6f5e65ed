"""What other programs, or holders of the actors' password, write to the store does not stop a run; on all servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actors.transport.base import Malformed, StoreReset
from actors.transport.ledger import MAX_FIELDS, LedgerError
from actors.transport.redis import Transport
from tests.conftest import FIRST_SERVER
from tests.fuzz.damage import damaged
from tests.support.examples import examples
from tests.support.queueing import BUSY, OK, counts, header, put, report, take_ids
from tests.support.stores import Store
from tests.unit.transport.test_names import INVALID_NAMES

LARGEST = f"{2**64 - 1}-{2**64 - 1}"
MAX_INTEGER = 2**53 - 1


@pytest.fixture
def learner(any_store: Store) -> Transport:
    transport = any_store(max_episodes=8)
    transport.open_generation(-1, "learner")
    return transport


Write = Callable[..., None]


@pytest.fixture
def write(any_store: Store) -> Write:
    """Execute a command on a key to which actors may write."""
    return lambda command, key, *args: any_store.client.execute_command(command, any_store.key(key), *args)


# Counts and rows


@pytest.mark.parametrize("field", ["queued", "pending", "turn", "trained"])
@pytest.mark.parametrize("value", [10**15, "corrupt"])
def test_counts_that_an_actor_wrote_decide_nothing(
    learner: Transport, write: Write, field: str, value: int | str
) -> None:
    put(learner, 0, 1, 2)
    (taken,) = take_ids(learner, 1)
    write("HSET", "ledger", field, value)
    put(learner, 3)  # perhaps BUSY, until the waiting episodes were taken
    others = take_ids(learner)
    assert put(learner, 4, 5) == [OK, OK]
    assert learner.ack([taken, *others]) == [taken, *others]
    learner.open_generation(0, "next")
    assert len(learner.ack(take_ids(learner))) == 2
    ledger = learner.ledger()
    assert (ledger.queued, ledger.queued_bytes, ledger.pending) == (0, 0, 0)
    if field != "trained":
        assert (ledger.trained, ledger.missing) == (3 + len(others), 0)


def test_an_incarnation_number_that_an_actor_wrote_does_not_use_up_the_numbers(
    learner: Transport, write: Write
) -> None:
    first = learner.new_incarnation("a").number
    for number in (999_999_999_999_999, 10**16, 2**53, "x"):
        write("HSET", "ledger", "actor:a:incarnation", number)
        for _ in range(2):
            second = learner.new_incarnation("a").number
            assert second > first
            assert put(learner, 0, incarnation=second) == [OK]
        learner.ack(take_ids(learner))


BAD_HEALTH: dict[Any, Any] = {
    **dict.fromkeys(("a/x", "a b/1", "a"), '{"reported_s": 1}'),
    "a/7": "not json",
    "a/8": '{"reported_s": NaN}',
    "a/9": '{"reported_s": "now"}',
    "a/10": "{}",
    "a/11": '{"reported_s": 1' + "0" * 400 + "}",
    "learner": "[]",
    b"\xff/1": b"\xff",
}
BAD_LEDGER: dict[Any, Any] = {
    **dict.fromkeys(("unknown", "actor:a/x:accepted", "actor:a b/1:unsent"), "1"),
    "actor:a/1:accepted": "x",
    b"\xff": b"\xff",
}


def test_unreadable_rows_are_skipped_and_counted(
    learner: Transport, any_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    learner.report_learner({"update": 2})
    report(learner, 1, actor="good")
    any_store.client.hset(any_store.key("health"), mapping=BAD_HEALTH)
    any_store.client.hset(any_store.key("ledger"), mapping=BAD_LEDGER)
    for _ in range(2):
        health, ledger = learner.health(), learner.ledger()
    assert (health.unreadable, set(health.actors), health.learner) == (len(BAD_HEALTH), {("good", 1)}, {})
    assert (ledger.unreadable, set(ledger.actors)) == (len(BAD_LEDGER), {("good", 1)})
    ledger.check()
    assert caplog.text.count("of the store's health that Tamiyo did not write") == 1


def fill(store: Store, count: int, field: str, key: str = "ledger", value: str = "1") -> None:
    for start in range(0, count, 5000):
        rows = {field.format(n): value for n in range(start, min(count, start + 5000))}
        store.client.hset(store.key(key), mapping=rows)


@pytest.mark.parametrize("any_store", FIRST_SERVER, indirect=True)
def test_a_full_ledger_refuses_new_names_and_serves_known_ones(learner: Transport, any_store: Store) -> None:
    for actor in ("a", "b"):
        learner.new_incarnation(actor)
    put(learner, 0, 1)
    fill(any_store, 20_000, "actor:evil{}/1:produced")
    for call in (
        lambda: learner.new_incarnation("new"),
        lambda: put(learner, 0, actor="new"),
        lambda: report(learner, 1, actor="new"),
        lambda: report(learner, 2, actor="b"),  # an older incarnation without a row
    ):
        with pytest.raises(Malformed, match="fewer names"):
            call()
    number = learner.new_incarnation("a").number
    assert put(learner, 0, incarnation=number) == [OK]
    report(learner, number, produced=1, accepted=1)
    assert len(learner.ledger().actors) > 20_000
    # beyond a limit, rows are not even read
    fill(any_store, MAX_FIELDS, "actor:evil{}/1:produced")
    fill(any_store, MAX_FIELDS + 1, "evil{}/1", "health", '{"reported_s": 1}')
    learner.report_learner({"update": 3})
    assert counts(learner, "accepted", "queued") == (3, 3)
    health, ledger = learner.health(), learner.ledger()
    assert (ledger.actors, health.actors, health.learner["update"]) == ({}, {}, 3)
    assert min(ledger.unreadable, health.unreadable) > MAX_FIELDS
    learner.open_generation(0, "next")
    assert len(take_ids(learner)) == 3


# Streams


def test_episodes_that_an_actor_trimmed_are_counted_as_missing(learner: Transport, write: Write) -> None:
    put(learner, *range(5))
    taken = take_ids(learner, 2)
    assert put(learner, *range(5, 11)) == [OK] * 5 + [BUSY]
    write("XADD", "episodes", "MAXLEN", 0, "*", "x", "y")
    with pytest.raises(LedgerError, match="in the stream"):
        learner.ledger().check()
    assert put(learner, 20) == [OK]  # a trimmed queue does not stay full
    assert len(take_ids(learner)) == 1
    assert learner.ledger().missing == 8
    assert learner.ack(taken) == taken  # the learner has them
    write("XADD", "episodes", "MAXLEN", 0, "*", "x", "y")
    learner.open_generation(0, "next")  # pending entries are counted now
    assert learner.pending() == []
    assert counts(learner, "pending", "missing", "foreign", "trained") == (0, 9, 0, 2)


@pytest.mark.parametrize("stream", ["episodes", "dead"])
def test_the_largest_id_in_a_stream_is_survived(learner: Transport, write: Write, stream: str) -> None:
    oversize = bytes(learner.config.max_episode_bytes + 1)
    put(learner, 0, 1, 2)
    first, second = take_ids(learner, 2)
    assert learner.dead_letter(first, "kept")
    write("XADD", stream, LARGEST, "x", "y")
    assert put(learner, 3, payload=b"payload" if stream == "episodes" else oversize) == [BUSY]
    calls = {"episodes": lambda: learner.take(1, 0), "dead": lambda: learner.dead_letter(second, "reason")}
    with pytest.raises(StoreReset, match="used up"):
        calls[stream]()
    learner.open_generation(0, "next")
    assert [d.entry_id for d in learner.pending()] == [second]
    assert put(learner, 3) + put(learner, 4, payload=oversize) == [OK, OK]
    others = take_ids(learner)
    assert learner.ack([second, *others]) == [second, *others]
    assert [letter.reason for letter in learner.dead_letters()][:1] == ["kept"]
    assert counts(learner, "accepted", "trained", "dead_lettered", "missing") == (5, 3, 2, 0)


def test_foreign_entries_among_the_dead_letters_are_skipped(any_store: Store, caplog: pytest.LogCaptureFixture) -> None:
    learner = any_store(dead_letters_kept=1)
    learner.open_generation(-1, "learner")
    for fields in ({"foo": "bar"}, {"ref": "1 1 0 0 7 run/a b/0/1", "reason": "x"}, {"ref": "1 1 0 0 7 run/a/0/9"}):
        any_store.client.xadd(any_store.key("dead"), fields)
    put(learner, 0, 1)
    for entry_id in take_ids(learner):
        assert learner.dead_letter(entry_id, "reason")
        assert [letter.reason for letter in learner.dead_letters()] == ["reason"]
    assert learner.dead_letters()[0].header == header(1)
    assert counts(learner, "dead_lettered", "foreign", "dead_bytes") == (2, 2, 7)
    any_store.client.xadd(any_store.key("dead"), {"foo": "bar"})
    assert len(learner.dead_letters()) == 1
    assert "dead letters that Tamiyo did not write" in caplog.text


GOOD = b"3 1 2 3 1000 run/actor-0/1719/42"
NAME = rb"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
REF = re.compile(
    rb"(-?\d+) (\d+) (-?\d+) (-?\d+) (\d+) " + NAME + rb"/" + NAME + rb"/(0|[1-9]\d*)/(0|[1-9]\d*)", re.DOTALL
)


def is_header(ref: bytes) -> bool:
    found = REF.fullmatch(ref)
    return found is not None and all(len(n) <= 17 and abs(int(n)) <= MAX_INTEGER for n in found.groups())


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    fields=st.one_of(
        st.one_of(damaged((GOOD,)), st.binary(max_size=60)).map(lambda ref: {b"ref": ref}),
        st.dictionaries(st.binary(max_size=9), st.binary(max_size=40), min_size=1, max_size=3),
    )
)
@example({b"ref": GOOD})
@example({b"ref": b"3 1 2 3 1000 run/\xff\xfe/1719/42"})
@example({b"ref": b"3 1 2 3 1000 run/actor-0/" + b"9" * 5000 + b"/42"})
@example({b"ref": b"3 1 2 3 1000 run/a\nb/1/42"})
@example({b"ref": b"3 1 2 3 1000 run/" + b"a" * 101 + b"/1719/42"})
def test_any_entry_is_an_episode_or_foreign(learner: Transport, any_store: Store, fields: dict[bytes, bytes]) -> None:
    before = learner.ledger().foreign
    any_store.client.xadd(any_store.key("episodes"), fields)
    taken = learner.take(9, 0)
    assert len(taken) == (set(fields) == {b"ref"} and is_header(fields[b"ref"]))
    assert learner.ledger().foreign == before + (not taken)
    for delivery in taken:
        assert delivery.payload == b""
        assert [d.entry_id for d in learner.pending()] == [delivery.entry_id]
        assert learner.dead_letter(delivery.entry_id, "a foreign entry")
        assert learner.dead_letters()[-1].header == delivery.header
    assert learner.pending() == []


# Calls of our own functions


VALID_REPORT = ("actor9", 1, 0, 0, 0, 0, 0, '{"reported_s": 1.0}', 0)
INVALID_PARTS: list[tuple[int, str | int]] = [
    *((0, name) for name in ("x y", "[bold]", "a/b")),
    *((1, number) for number in ("x", "1e3", "01", "-1", "9" * 400, MAX_INTEGER, MAX_INTEGER + 1)),
    *((2, number) for number in ("x", "-1", MAX_INTEGER + 1)),
    *((3, "-1"), (6, "nan"), (7, '{"reported_s": 1, "x": "' + "x" * 20_000 + '"}')),
    *((7, health) for health in ("not json", "7", "null", "[1]", "{}", "[" * 5000)),
    *((7, f'{{"reported_s": {value}}}') for value in ('"now"', "{}", "1e999", "NaN")),
]


def test_the_store_itself_checks_reports(learner: Transport) -> None:
    """Clients of other versions, or other programs, may not have checked it."""
    server = learner.server
    report(learner, 1, produced=2, unsent=2)
    before = learner.ledger(), learner.health().actors
    wrong = [(*VALID_REPORT[:at], value, *VALID_REPORT[at + 1 :]) for at, value in INVALID_PARTS]
    for arguments in (*wrong, VALID_REPORT[:-1]):
        with pytest.raises(Malformed):
            server.call("report", *arguments)
    assert (learner.ledger(), learner.health().actors) == before
    server.call("report", *VALID_REPORT)
    assert learner.health().actors["actor9", 1] == {"reported_s": 1.0}


WRONG_IDS = (
    *(f"{name}/a/0/2" for name in INVALID_NAMES),
    *(f"run/{name}/0/2" for name in INVALID_NAMES),
    "run/a/b/2",
    "run/a/1/2",  # of another incarnation than the first
    "run/b/0/2",
    "run/a/0/02",
    f"run/a/{MAX_INTEGER}/2",  # a time in the far future
)


def test_the_store_validates_all_references_before_it_writes(learner: Transport, any_store: Store) -> None:
    """A refused call leaves no payload without expiry behind, which nothing would ever delete."""
    for wrong in WRONG_IDS:
        ids = [wrong] if str(MAX_INTEGER) in wrong else ["run/a/0/0", "run/a/0/1", wrong]
        values = {any_store.key("payload:") + i: b"payload" for i in ids}
        with pytest.raises(Malformed):
            learner.server.store(values, 60_000, "put", *(f"1 0 0 7 {i}" for i in ids))
    assert learner.take(9, 0) == []
    assert counts(learner, "accepted", "queued", "stream_entries", "foreign") == (0, 0, 0, 0)
    assert all(any_store.client.pttl(any_store.key(key)) > 0 for key in any_store.keys("payload:*"))


def test_the_limits_are_the_runs_and_not_the_callers(learner: Transport, any_store: Store) -> None:
    large = {"max_episodes": 10**6, "max_bytes": 2**40, "max_episode_bytes": 2**28, "dead_letters_kept": 10**6}
    for actor, limits in (("a", large), ("b", dict.fromkeys(large, 1))):
        assert put(any_store(**limits), *range(9), actor=actor) == [OK] * 8 + [BUSY]
        take_ids(learner)
    oversize = bytes(learner.config.max_episode_bytes + 1)
    assert put(any_store(**large), 0, actor="c", payload=oversize) == [OK]
    assert counts(learner, "dead_lettered", "dead_bytes") == (1, 0)
