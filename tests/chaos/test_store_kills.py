"""The server is killed: with a file it keeps accepted episodes, without one they are counted as lost."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from actors.transport.base import PutStatus
from actors.transport.redis import connect
from actors.transport.retry import Retry
from deploy.launch import embedded_redis
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.queueing import counts, header, put

pytestmark = [pytest.mark.integration, pytest.mark.chaos]


class KilledServer(EmbeddedRedis):
    """An embedded server, with an append-only file and further settings if there are any."""

    def __init__(self, **settings: str) -> None:
        super().__init__(append_only=bool(settings))
        self._settings = settings

    def _config(self, append_only: bool) -> str:
        return super()._config(append_only) + "".join(f"{k.replace('_', '-')} {v}\n" for k, v in self._settings.items())

    @property
    def file(self) -> Path:
        (found,) = (self.socket_path.parent / "appendonlydir").glob("*.incr.aof")
        return found

    def die(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def revive(self) -> None:
        self.die()
        assert self.restart_if_dead()


def test_accepted_episodes_survive_a_kill_of_the_server() -> None:
    """The server is killed three times while an actor puts and a learner acknowledges. It syncs before it answers: with
    `everysec`, writes wait for up to two seconds while the disk is busy."""
    with KilledServer(appendfsync="always") as server:
        learner = connect(server.url)
        learner.open_generation(-1, "learner")
        accepted, trained, over = 0, 0, threading.Event()

        def act() -> None:
            nonlocal accepted
            actor, retry = connect(server.url), Retry()

            def offer() -> PutStatus:
                return actor.put(header(accepted), b"x" * 2000).status

            while not over.is_set():
                status = retry(offer)
                assert status in (PutStatus.OK, PutStatus.DUPLICATE, PutStatus.BUSY)
                accepted += status is not PutStatus.BUSY

        actor = threading.Thread(target=act)
        actor.start()
        for _ in range(3):
            goal = trained + 40
            while trained < goal:
                trained += len(learner.ack([d.entry_id for d in learner.take(8, 0.5)]))
            server.revive()
            assert learner.ledger().trained == trained  # and its turn is known: no generation has to be opened
        over.set()
        actor.join(30)
        assert counts(learner, "accepted", "trained", "lost_with_store") == (accepted, trained, 0)
        while deliveries := learner.take(100, 0):
            trained += len(learner.ack([d.entry_id for d in deliveries if d.payload]))
        assert trained == accepted


def test_the_last_second_lost_in_a_power_failure_is_counted(tmp_path: Path) -> None:
    """The file loses what `everysec` had not synced. Episodes trained on meanwhile stay trained."""
    with KilledServer(appendfsync="everysec") as server:
        producer = ToyProducer(connect(server.url))
        learner = make_learner(tmp_path, connect(server.url), updates=5)
        calls, synced = iter(range(10**6)), 0

        def produce_and_kill() -> bool:
            nonlocal synced
            producer()
            call = next(calls)
            if call == 3:
                synced = server.file.stat().st_size
            if call == 6:
                server.die()
                os.truncate(server.file, synced)
                assert server.restart_if_dead()
            return False

        progress = learner.run(produce_and_kill)
        ids = [row["episode_id"] for row in lines(tmp_path / "episodes.jsonl")]
        ledger = learner.transport.ledger()
        ledger.check()
        assert (progress.update, progress.generation) == (5, 2)
        assert len(ids) == len(set(ids)) == ledger.trained == 20
        assert ledger.trained_then_lost == 0
        assert ledger.lost_with_store > 0
        assert any("waiting for it" in note for note in learner.notes)


def test_a_server_that_loads_its_file_for_longer_than_it_may_take_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with KilledServer(key_load_delay="200") as server:
        transport = connect(server.url)
        transport.open_generation(-1, "learner")
        put(transport, 0)
        pipeline = transport.server.client.pipeline(transaction=False)
        for i in range(5_000):
            pipeline.set(f"filler{i}", "x")
        pipeline.execute()
        monkeypatch.setattr(embedded_redis, "START_TIMEOUT_S", 0.7)
        server.revive()
        assert [d.header for d in Retry()(lambda: transport.take(9, 0))] == [header(0)]
