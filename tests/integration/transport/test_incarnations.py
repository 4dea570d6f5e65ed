"""The ledger on a server keeps rows of few incarnations of an actor, so that it does not grow with their number."""

from __future__ import annotations

import pytest

from actors.transport.ledger import RETIRED, ROWS_KEPT, ActorLedger, LedgerMemory
from actors.transport.redis import Transport
from tests.support.queueing import DUPLICATE, counts, put, report, take_ids
from tests.support.stores import Store

COUNT = 12
ENDED = ActorLedger(6, 2, 1, 1, 0, 2)


def run_incarnations(transport: Transport, *incarnations: int) -> None:
    """Let each produce 6 episodes: 2 accepted, 1 dropped, 1 refused, and 2 unsent when its successor starts."""
    for incarnation in incarnations:
        put(transport, 0, 1, incarnation=incarnation)
        report(transport, incarnation, produced=6, accepted=2, dropped_backpressure=1, refused_fenced=1, unsent=2)


def summed(transport: Transport) -> ActorLedger:
    total = ActorLedger()
    for row in transport.ledger().actors.values():
        total = total.plus(row)
    return total


@pytest.fixture
def transport(any_store: Store) -> Transport:
    transport = any_store(max_episodes=1000)
    transport.open_generation(-1, "learner")
    run_incarnations(transport, *range(COUNT))
    return transport


def test_old_incarnations_share_one_row(transport: Transport, any_store: Store) -> None:
    transport.ledger().check()
    assert transport.ledger().actors == {("a", RETIRED): ActorLedger().plus(ENDED, COUNT - ROWS_KEPT)} | {
        ("a", n): ENDED for n in range(COUNT - ROWS_KEPT, COUNT - 1)
    } | {("a", COUNT - 1): ActorLedger(6, 2, 1, 1, 2)}
    assert counts(transport, "accepted", "queued") == (2 * COUNT, 2 * COUNT)
    few = any_store.client.hlen(any_store.key("ledger"))
    run_incarnations(transport, *range(COUNT, 200))
    assert any_store.client.hlen(any_store.key("ledger")) == few
    transport.ledger().check()


def test_an_empty_store_restores_the_shared_row_from_the_checkpoint(transport: Transport, any_store: Store) -> None:
    ids = take_ids(transport)
    transport.ack(ids[1:])
    memory = LedgerMemory(transport.ledger(), ("run/a/0/0",))  # of an incarnation that has no row of its own any more
    before = summed(transport)
    any_store.client.delete(*map(any_store.key, any_store.keys()))
    after = any_store(max_episodes=1000)
    after.open_generation(0, "learner", None, LedgerMemory.from_dict(memory.to_dict()))
    assert counts(after, "accepted", "trained", "lost_with_store") == (2 * COUNT, 2 * COUNT, 0)
    assert (summed(after), after.ledger().actors) == (before, memory.ledger.actors)
    run_incarnations(after, COUNT)
    assert set(after.ledger().actors) == {("a", n) for n in (RETIRED, *range(COUNT + 1 - ROWS_KEPT, COUNT + 1))}
    after.ledger().check()
    assert put(after, 1, incarnation=COUNT - 1) == [DUPLICATE]
