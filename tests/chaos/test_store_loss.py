"""The server is killed: with a file it keeps all accepted episodes, without one the lost episodes are counted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from actors.transport.ledger import ActorLedger
from actors.transport.redis import connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.learning.toy_learner import ToyProducer, make_learner
from tests.support.queueing import counts, put, report

pytestmark = [pytest.mark.integration, pytest.mark.chaos]


def kill_and_revive(server: EmbeddedRedis) -> None:
    os.kill(server.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    assert server.restart_if_dead()


def test_a_server_with_a_file_keeps_accepted_episodes() -> None:
    with EmbeddedRedis(append_only=True) as server:
        transport = connect(server.url)
        transport.open_generation(-1, "learner")
        put(transport, *range(50))
        taken = transport.take(20, 0)
        transport.ack([d.entry_id for d in taken[:10]])
        before = transport.ledger()
        kill_and_revive(server)
        assert transport.ledger() == before
        assert len(transport.take(100, 0)) == 30  # the learner's turn is known too
        assert counts(transport, "accepted", "trained", "pending", "lost_with_store") == (50, 10, 40, 0)


def test_a_learner_continues_after_the_loss_of_the_store_and_counts_lost_episodes(tmp_path: Path) -> None:
    """An actor knows of accepted episodes that the learner's last checkpoint does not."""
    with EmbeddedRedis() as server:
        producer = ToyProducer(connect(server.url))
        learner = make_learner(tmp_path, connect(server.url), updates=4)
        calls = iter(range(10**6))

        def produce_and_kill() -> bool:
            producer()
            if next(calls) == 5:
                put(producer.transport, 0, actor="other")
                kill_and_revive(server)
            return False

        progress = learner.run(produce_and_kill)
        producer.transport.report("actor0", 0, ActorLedger(producer.put, producer.put), {})
        report(producer.transport, actor="other", produced=2, accepted=1, unsent=1)  # its next heartbeat
        ledger = learner.transport.ledger()
        ledger.check()
        assert (progress.update, progress.generation) == (4, 2)
        assert (ledger.trained, ledger.trained_then_lost) == (16, 0)
        assert ledger.lost_with_store > 0
        assert ledger.accepted == producer.put + 1
        assert ledger.actors["other", 0] == ActorLedger(2, 1, unsent=1)
        assert any("waiting for it" in note for note in learner.notes)
