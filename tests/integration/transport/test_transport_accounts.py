"""The ledger: both identities, at every instant. One suite for every transport."""

from __future__ import annotations

import threading
import time

import pytest

from actors.transport.base import Transport
from actors.transport.ledger import ActorLedger, LedgerError
from tests.conftest import Connect
from tests.support.queueing import BUSY, counts, header, put, report, take_ids

pytestmark = pytest.mark.integration


def test_reports_close_each_actors_account(open_transport: Connect) -> None:
    transport = open_transport(max_episodes=2)
    transport.open_generation(-1, "learner")
    put(transport, 0, 1, 2, 3)
    report(transport, produced=5, accepted=2, dropped_backpressure=1, unsent=2)
    transport.ack(take_ids(transport))
    put(transport, 4, 5, 6)  # one of the unsent two, one more, one refused as busy
    transport.ledger().check()
    assert transport.ledger().actors["a", 0] == ActorLedger(5, 4, 0, 1, 0, 0)
    report(transport, produced=7, accepted=4, dropped_backpressure=1, unsent=2)
    report(transport, 1)
    transport.ledger().check()
    assert transport.ledger().actors == {("a", 0): ActorLedger(7, 4, 0, 1, 0, 2), ("a", 1): ActorLedger()}


def test_a_wrong_report_fails_the_check(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    put(transport, 0)
    report(transport, produced=3, accepted=1, unsent=1)
    with pytest.raises(LedgerError, match="actor a"):
        transport.ledger().check()


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
