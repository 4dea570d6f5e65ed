"""Taking and settling episodes, on every backend."""

from __future__ import annotations

import threading
import time

import pytest

from actors.transport.base import DropReason, Generation, Transport
from tests.conftest import Connect
from tests.support.queueing import counts, put, take_ids

pytestmark = pytest.mark.integration


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


def test_ack_settles_each_pending_entry_once(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    put(transport, 0, 1, 2)
    first, second = take_ids(transport, 2)
    assert transport.ack([]) == []
    assert transport.ack([first, first, "1-1"]) == [first]
    assert transport.ack([first, second]) == [second]
    assert counts(transport, "trained", "queued", "pending", "stream_entries", "queued_bytes") == (2, 1, 0, 1, 7)


def test_drop_counts_by_reason(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    put(transport, 0, 1, 2)
    ids = take_ids(transport)
    assert transport.drop(ids[:2], DropReason.STALE) == ids[:2]
    assert transport.drop(ids, DropReason.FENCED) == ids[2:]
    assert counts(transport, "dropped_stale", "fenced", "stream_entries") == (2, 1, 0)


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
