"""The ledger's two identities hold at all times, on every backend."""

from __future__ import annotations

import threading
import time

import pytest

from actors.transport.base import Transport
from actors.transport.ledger import ActorLedger, LedgerError
from tests.conftest import Connect
from tests.support.queueing import BUSY, counts, header, put, report, take_ids

pytestmark = pytest.mark.integration


def test_reports_balance_each_actors_row(open_transport: Connect) -> None:
    transport = open_transport(max_episodes=2)
    transport.open_generation(-1, "learner")
    put(transport, 0, 1, 2, 3)
    report(transport, produced=5, accepted=2, dropped_backpressure=1, unsent=2)
    transport.ack(take_ids(transport))
    put(transport, 4, 5, 6)  # one of the two unsent, one new, one BUSY
    transport.ledger().check()
    assert transport.ledger().actors["a", 0] == ActorLedger(5, 4, 0, 1, 0, 0)
    report(transport, produced=7, accepted=4, dropped_backpressure=1, unsent=2)
    report(transport, 1)
    transport.ledger().check()
    assert transport.ledger().actors == {("a", 0): ActorLedger(7, 4, 0, 1, 0, 2), ("a", 1): ActorLedger()}


def test_check_rejects_an_inconsistent_report(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    put(transport, 0)
    report(transport, produced=3, accepted=1, unsent=1)
    with pytest.raises(LedgerError, match="actor a"):
        transport.ledger().check()


def test_the_ledger_is_exact_under_concurrent_calls(open_transport: Connect) -> None:
    learner, watcher = open_transport(max_episodes=4), open_transport()
    learner.open_generation(-1, "learner")
    episodes = 60  # per actor

    def produce(actor: str) -> None:
        transport = open_transport(max_episodes=4)
        for sequence in range(episodes):
            while transport.put(header(sequence, actor=actor), b"payload").status is BUSY:
                time.sleep(0.001)

    threads = [threading.Thread(target=produce, args=(actor,)) for actor in ("a", "b")]
    for thread in threads:
        thread.start()
    trained: list[str] = []
    deadline = time.monotonic() + 20
    while len(trained) < 2 * episodes and time.monotonic() < deadline:
        watcher.ledger().check()
        deliveries = learner.take(7, 0.05)
        watcher.ledger().check()
        learner.ack([d.entry_id for d in deliveries])
        trained += [d.header.episode_id for d in deliveries]
    for thread in threads:
        thread.join()
    assert sorted(trained) == sorted(f"run/{actor}/0/{n}" for actor in "ab" for n in range(episodes))
    assert counts(watcher, "accepted", "trained") == (2 * episodes, 2 * episodes)
