"""kill -9 of the server: with its file it keeps what it accepted; without, what is gone is counted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from actors.transport.ledger import ActorLedger
from actors.transport.redis import connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.queueing import counts, put, report
from tests.support.toy_learner import ToyProducer, make_learner

pytestmark = [pytest.mark.integration, pytest.mark.chaos]


def kill_and_revive(server: EmbeddedRedis) -> None:
    os.kill(server.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    assert server.restart_if_dead()


def test_a_server_with_a_file_keeps_what_it_accepted() -> None:
    with EmbeddedRedis(append_only=True) as server:
        transport = connect(server.url)
        transport.open_generation(-1, "learner")
        put(transport, *range(50))
        taken = transport.take(20, 0)
        transport.ack([d.entry_id for d in taken[:10]])
        before = transport.ledger()
        kill_and_revive(server)
        assert transport.ledger() == before
        assert len(transport.take(100, 0)) == 30  # and the learner's turn is known
        assert counts(transport, "accepted", "trained", "pending", "lost_with_store") == (50, 10, 40, 0)


def test_without_one_a_learner_goes_on_and_counts_what_was_lost(tmp_path: Path) -> None:
    """The store dies under a learner that lives on; the actor knows of more than the learner's last checkpoint."""
    with EmbeddedRedis() as server:
        producer = ToyProducer(connect(server.url))
        learner = make_learner(tmp_path, connect(server.url), updates=4)
        looks = iter(range(10**6))

        def actor_and_fate() -> bool:
            producer()
            if next(looks) == 5:
                put(producer.transport, 0, actor="other")
                kill_and_revive(server)
            return False

        progress = learner.run(actor_and_fate)
        producer.transport.report("actor0", 0, ActorLedger(producer.put, producer.put), {})
        report(producer.transport, actor="other", produced=2, accepted=1, unsent=1)  # by its next heartbeat
        ledger = learner.transport.ledger()
        ledger.check()
        assert (progress.update, progress.generation) == (4, 2)
        assert (ledger.trained, ledger.trained_then_lost) == (16, 0)
        assert ledger.lost_with_store > 0
        assert ledger.accepted == producer.put + 1
        assert ledger.actors["other", 0] == ActorLedger(2, 1, unsent=1)
        assert any("waiting for it" in note for note in learner.notes)
