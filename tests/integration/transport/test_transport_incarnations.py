"""Lives of actors: their numbers, and rows of the ledger that stay few however many there were. One suite for every
transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from actors.config import QueueConfig
from actors.transport.base import Malformed, Transport
from actors.transport.ledger import RETIRED, ROWS_KEPT, ActorLedger, LedgerMemory
from actors.transport.redis import RedisTransport, connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.conftest import Connect
from tests.integration.transport.test_transport_loss import freeze
from tests.support.queueing import DUPLICATE, OK, counts, put, report, take_ids

pytestmark = pytest.mark.integration

LIVES = 12


def test_no_two_lives_have_one_number(open_transport: Connect) -> None:
    """As when fleets start in the same millisecond."""
    handles = [open_transport() for _ in range(6)]
    handles[0].open_generation(-1, "learner")
    begun: list[tuple[str, int, bool]] = []
    together = threading.Barrier(len(handles))

    def live(transport: Transport) -> None:
        together.wait()
        for _ in range(5):
            for actor in "ab":
                new = transport.new_incarnation(actor)
                begun.append((actor, new.number, new.is_first))

    threads = [threading.Thread(target=live, args=(transport,)) for transport in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(actor, number) for actor, number, _ in begun}) == len(begun) == 60
    first = {actor: number for actor, number, is_first in begun if is_first}
    assert sum(is_first for *_, is_first in begun) == 2
    assert first == {actor: min(n for a, n, _ in begun if a == actor) for actor in "ab"}


def test_a_number_is_a_time_and_beyond_all_that_were_seen(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    now = time.time_ns() // 1_000_000
    first = transport.new_incarnation("a")
    assert abs(first.number - now) < 60_000
    ahead = now + 600_000  # of a machine whose clock is
    assert put(transport, 0, incarnation=ahead) == [OK]
    assert transport.new_incarnation("a").number == ahead + 1
    with pytest.raises(Malformed):
        transport.new_incarnation("no name")


def live_and_die(transport: Transport, *lives: int) -> None:
    """Each produces 6: two are accepted, one is dropped, one refused, and two are unsent when its successor comes."""
    for life in lives:
        put(transport, 0, 1, incarnation=life)
        report(transport, life, produced=6, accepted=2, dropped_backpressure=1, refused_fenced=1, unsent=2)


def summed(transport: Transport) -> ActorLedger:
    rows = transport.ledger().actors.values()
    total = ActorLedger()
    for row in rows:
        total = total.plus(row)
    return total


def test_the_dead_share_one_row(open_transport: Connect) -> None:
    transport = open_transport()
    transport.open_generation(-1, "learner")
    live_and_die(transport, *range(LIVES))
    transport.ledger().check()
    rows = transport.ledger().actors
    dead = ActorLedger(6, 2, 1, 1, 0, 2)
    assert rows == {("a", RETIRED): ActorLedger().plus(dead, LIVES - ROWS_KEPT)} | {
        ("a", life): dead for life in range(LIVES - ROWS_KEPT, LIVES - 1)
    } | {("a", LIVES - 1): ActorLedger(6, 2, 1, 1, 2)}
    assert counts(transport, "accepted", "queued") == (2 * LIVES, 2 * LIVES)


def test_one_that_was_thought_dead_goes_on_where_it_was(open_transport: Connect) -> None:
    """A fleet of its own, or a process that was stopped: what it sends counts once, as ever."""
    transport = open_transport()
    transport.open_generation(-1, "learner")
    live_and_die(transport, *range(LIVES))
    before = summed(transport)
    assert put(transport, 1, 2, incarnation=0) == [DUPLICATE, OK]  # one of its two unsent
    assert transport.ledger().actors["a", 0] == ActorLedger(6, 3, 1, 1, 0, 1)
    transport.ledger().check()
    report(transport, 0, produced=7, accepted=3, dropped_backpressure=1, refused_fenced=1, unsent=2)
    assert transport.ledger().actors["a", 0] == ActorLedger(7, 3, 1, 1, 0, 2)
    report(transport, 1, produced=6, accepted=2, dropped_backpressure=1, refused_fenced=1, unsent=2)
    transport.ledger().check()
    assert transport.ledger().actors["a", RETIRED] == ActorLedger().plus(
        ActorLedger(6, 2, 1, 1, 0, 2), LIVES - ROWS_KEPT - 2
    )
    assert summed(transport) == before.plus(ActorLedger(produced=1, accepted=1))
    transport.new_incarnation("a")
    assert len(transport.ledger().actors) == 1 + ROWS_KEPT
    assert put(transport, 2, incarnation=0) == [DUPLICATE]
    assert put(transport, 0, 1, incarnation=3) == [DUPLICATE, DUPLICATE]
    transport.ledger().check()
    assert counts(transport, "accepted") == (2 * LIVES + 1,)


def test_a_lost_store_goes_on_with_what_they_share(open_transport: Connect) -> None:
    transport, empty = open_transport(), freeze(open_transport())
    transport.open_generation(-1, "learner")
    live_and_die(transport, *range(LIVES))
    ids = take_ids(transport)
    transport.ack(ids[1:])
    memory = LedgerMemory(transport.ledger(), ("run/a/0/0",))  # of one that has no row of its own any more
    memory = LedgerMemory.from_dict(memory.to_dict())
    before = summed(transport)
    empty()
    after = open_transport()
    after.open_generation(0, "learner", None, memory)
    assert counts(after, "accepted", "trained", "lost_with_store") == (2 * LIVES, 2 * LIVES, 0)
    assert (summed(after), after.ledger().actors) == (before, memory.ledger.actors)
    live_and_die(after, LIVES)
    assert set(after.ledger().actors) == {("a", n) for n in (RETIRED, *range(LIVES + 1 - ROWS_KEPT, LIVES + 1))}
    after.ledger().check()
    assert put(after, 1, incarnation=LIVES - 1) == [DUPLICATE]


@pytest.mark.parametrize("scripts", [False, True], ids=["functions", "scripts"])
def test_a_store_of_an_earlier_version_is_brought_up_to_date(
    embedded_redis: EmbeddedRedis, namespace: str, scripts: bool
) -> None:
    """It has a row for every life that there was."""
    transport = connect(embedded_redis.url, None, namespace, scripts)
    client, key = transport._queue.client, transport._queue.key
    lives = {
        f"actor:a/{life}:{term}": n
        for life in range(2000)
        for term, n in {"produced": 3, "accepted": 2, "dropped_backpressure": 1, "next_sequence": 2}.items()
    }
    client.hset(key("ledger"), mapping=lives | {"actor:a:incarnation": 1999, "accepted": 4000, "trained": 4000})
    transport.open_generation(-1, "learner")
    ledger = transport.ledger()
    ledger.check()
    assert set(ledger.actors) == {("a", n) for n in (RETIRED, 1997, 1998, 1999)}
    assert ledger.actors["a", RETIRED] == ActorLedger(3 * 1997, 2 * 1997, 0, 1997)
    assert put(transport, 1, 2, incarnation=5) == [DUPLICATE, OK]
    transport.ledger().check()
    assert transport.ledger().actors["a", 5] == ActorLedger(4, 3, 0, 1)


@pytest.mark.parametrize("scripts", [False, True], ids=["functions", "scripts"])
def test_a_look_costs_the_same_after_many_lives(embedded_redis: EmbeddedRedis, namespace: str, scripts: bool) -> None:
    transport: RedisTransport = connect(embedded_redis.url, QueueConfig(max_episodes=1000), namespace, scripts)
    transport.open_generation(-1, "learner")
    client: Any = transport._queue.client
    fields: Callable[[], int] = lambda: client.hlen(transport._queue.key("ledger"))  # noqa: E731
    live_and_die(transport, *range(8))
    few = fields()
    live_and_die(transport, *range(8, 200))
    assert fields() == few
    transport.ledger().check()
