"""Incarnations of actors: their numbers, and a ledger whose size does not grow with them; on every backend."""

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

COUNT = 12


def test_incarnation_numbers_are_unique_under_concurrent_calls(open_transport: Connect) -> None:
    """Actors may start in the same millisecond."""
    handles = [open_transport() for _ in range(6)]
    handles[0].open_generation(-1, "learner")
    started: list[tuple[str, int, bool]] = []
    barrier = threading.Barrier(len(handles))

    def start_incarnations(transport: Transport) -> None:
        barrier.wait()
        for _ in range(5):
            for actor in "ab":
                new = transport.new_incarnation(actor)
                started.append((actor, new.number, new.is_first))

    threads = [threading.Thread(target=start_incarnations, args=(transport,)) for transport in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(actor, number) for actor, number, _ in started}) == len(started) == 60
    first = {actor: number for actor, number, is_first in started if is_first}
    assert sum(is_first for *_, is_first in started) == 2
    assert first == {actor: min(n for a, n, _ in started if a == actor) for actor in "ab"}


def test_an_incarnation_number_is_a_time_and_exceeds_all_earlier_ones(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    now = time.time_ns() // 1_000_000
    first = transport.new_incarnation("a")
    assert abs(first.number - now) < 60_000
    ahead = now + 600_000  # from a machine whose clock is ahead
    assert put(transport, 0, incarnation=ahead) == [OK]
    assert transport.new_incarnation("a").number == ahead + 1
    with pytest.raises(Malformed):
        transport.new_incarnation("no name")


def run_incarnations(transport: Transport, *incarnations: int) -> None:
    """Let each produce 6 episodes: 2 accepted, 1 dropped, 1 refused, and 2 unsent when its successor starts."""
    for incarnation in incarnations:
        put(transport, 0, 1, incarnation=incarnation)
        report(transport, incarnation, produced=6, accepted=2, dropped_backpressure=1, refused_fenced=1, unsent=2)


def summed(transport: Transport) -> ActorLedger:
    rows = transport.ledger().actors.values()
    total = ActorLedger()
    for row in rows:
        total = total.plus(row)
    return total


def test_old_incarnations_share_one_row(open_transport: Connect) -> None:
    transport = open_transport()
    transport.open_generation(-1, "learner")
    run_incarnations(transport, *range(COUNT))
    transport.ledger().check()
    rows = transport.ledger().actors
    ended = ActorLedger(6, 2, 1, 1, 0, 2)
    assert rows == {("a", RETIRED): ActorLedger().plus(ended, COUNT - ROWS_KEPT)} | {
        ("a", n): ended for n in range(COUNT - ROWS_KEPT, COUNT - 1)
    } | {("a", COUNT - 1): ActorLedger(6, 2, 1, 1, 2)}
    assert counts(transport, "accepted", "queued") == (2 * COUNT, 2 * COUNT)


def test_a_retired_incarnation_that_is_still_alive_gets_its_row_back(open_transport: Connect) -> None:
    """For example a process that was suspended. Its episodes still count once."""
    transport = open_transport()
    transport.open_generation(-1, "learner")
    run_incarnations(transport, *range(COUNT))
    before = summed(transport)
    assert put(transport, 1, 2, incarnation=0) == [DUPLICATE, OK]  # one of its two unsent
    assert transport.ledger().actors["a", 0] == ActorLedger(6, 3, 1, 1, 0, 1)
    transport.ledger().check()
    report(transport, 0, produced=7, accepted=3, dropped_backpressure=1, refused_fenced=1, unsent=2)
    assert transport.ledger().actors["a", 0] == ActorLedger(7, 3, 1, 1, 0, 2)
    report(transport, 1, produced=6, accepted=2, dropped_backpressure=1, refused_fenced=1, unsent=2)
    transport.ledger().check()
    assert transport.ledger().actors["a", RETIRED] == ActorLedger().plus(
        ActorLedger(6, 2, 1, 1, 0, 2), COUNT - ROWS_KEPT - 2
    )
    assert summed(transport) == before.plus(ActorLedger(produced=1, accepted=1))
    transport.new_incarnation("a")
    assert len(transport.ledger().actors) == 1 + ROWS_KEPT
    assert put(transport, 2, incarnation=0) == [DUPLICATE]
    assert put(transport, 0, 1, incarnation=3) == [DUPLICATE, DUPLICATE]
    transport.ledger().check()
    assert counts(transport, "accepted") == (2 * COUNT + 1,)


def test_an_empty_store_restores_the_shared_row_from_the_checkpoint(open_transport: Connect) -> None:
    transport, empty = open_transport(), freeze(open_transport())
    transport.open_generation(-1, "learner")
    run_incarnations(transport, *range(COUNT))
    ids = take_ids(transport)
    transport.ack(ids[1:])
    memory = LedgerMemory(transport.ledger(), ("run/a/0/0",))  # of an incarnation that has no row of its own any more
    memory = LedgerMemory.from_dict(memory.to_dict())
    before = summed(transport)
    empty()
    after = open_transport()
    after.open_generation(0, "learner", None, memory)
    assert counts(after, "accepted", "trained", "lost_with_store") == (2 * COUNT, 2 * COUNT, 0)
    assert (summed(after), after.ledger().actors) == (before, memory.ledger.actors)
    run_incarnations(after, COUNT)
    assert set(after.ledger().actors) == {("a", n) for n in (RETIRED, *range(COUNT + 1 - ROWS_KEPT, COUNT + 1))}
    after.ledger().check()
    assert put(after, 1, incarnation=COUNT - 1) == [DUPLICATE]


@pytest.mark.parametrize("scripts", [False, True], ids=["functions", "scripts"])
def test_the_ledger_of_an_earlier_version_is_migrated(
    embedded_redis: EmbeddedRedis, namespace: str, scripts: bool
) -> None:
    """It has a row for every incarnation."""
    transport = connect(embedded_redis.url, None, namespace, scripts)
    client, key = transport._queue.client, transport._queue.key
    rows = {
        f"actor:a/{incarnation}:{term}": n
        for incarnation in range(2000)
        for term, n in {"produced": 3, "accepted": 2, "dropped_backpressure": 1, "next_sequence": 2}.items()
    }
    client.hset(key("ledger"), mapping=rows | {"actor:a:incarnation": 1999, "accepted": 4000, "trained": 4000})
    transport.open_generation(-1, "learner")
    ledger = transport.ledger()
    ledger.check()
    assert set(ledger.actors) == {("a", n) for n in (RETIRED, 1997, 1998, 1999)}
    assert ledger.actors["a", RETIRED] == ActorLedger(3 * 1997, 2 * 1997, 0, 1997)
    assert put(transport, 1, 2, incarnation=5) == [DUPLICATE, OK]
    transport.ledger().check()
    assert transport.ledger().actors["a", 5] == ActorLedger(4, 3, 0, 1)


@pytest.mark.parametrize("scripts", [False, True], ids=["functions", "scripts"])
def test_the_size_of_the_ledger_does_not_grow_with_incarnations(
    embedded_redis: EmbeddedRedis, namespace: str, scripts: bool
) -> None:
    transport: RedisTransport = connect(embedded_redis.url, QueueConfig(max_episodes=1000), namespace, scripts)
    transport.open_generation(-1, "learner")
    client: Any = transport._queue.client
    fields: Callable[[], int] = lambda: client.hlen(transport._queue.key("ledger"))  # noqa: E731
    run_incarnations(transport, *range(8))
    few = fields()
    run_incarnations(transport, *range(8, 200))
    assert fields() == few
    transport.ledger().check()
