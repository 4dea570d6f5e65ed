"""A killed server keeps accepted episodes with a file, and counts them as lost without; a run survives kills of its
actors, of its learner and of the server that it embeds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actors.transport.base import PutStatus
from actors.transport.redis import connect
from actors.transport.retry import Retry
from deploy.launch import embedded_redis
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.harness import ChaosRun, chaos_run
from tests.support.launching import rows, small, tamiyo
from tests.support.learning.toy_learner import ToyProducer, make_learner
from tests.support.queueing import counts, header, put

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(300)]


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
        ids = [row["episode_id"] for row in rows(tmp_path / "episodes.jsonl")]
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


# Whole runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosRun]:
    root = tmp_path_factory.mktemp("chaos")
    with EmbeddedRedis() as server, chaos_run(root, "chaos", server, learner__checkpoint_every=4) as run:
        yield run


@pytest.mark.slow
def test_an_actor_killed_in_mid_episode_restarts_as_a_later_incarnation(run: ChaosRun) -> None:
    before = {number for _, number in run.ledger().actors}
    run.acting_again(run.kill("RayRolloutWorker"), before)
    run.wait_for_updates(2)
    assert max(number for _, number in run.identities().actors) > max(before)
    run.wait_for(lambda: "actor-0 died and was restarted" in run.command.out)


@pytest.mark.slow
def test_a_learner_killed_between_update_and_ack_trains_nothing_twice(run: ChaosRun) -> None:
    # Checkpoints and acknowledgements come every fourth update; before the first, all episodes would be fenced.
    run.wait_for(lambda: run.update > 4 and run.update % 4 == 2)
    assert run.ledger().pending >= 4
    run.running_again("learner", run.kill("LearnerService"))
    run.identities()
    run.wait_for(lambda: "the learner died" in run.command.out)


@pytest.mark.slow
def test_the_ledger_and_the_lineage_agree_at_the_end(run: ChaosRun) -> None:
    run.wait_for_updates(2)
    ledger = run.end()
    assert ledger.trained >= 4 * 6
    assert len(ledger.actors) >= 2
    assert run.checkpoint.progress.generation >= 2
    updates = [m["update"] for m in rows(run.folder / "metrics.jsonl")]
    assert updates == sorted(set(updates))
    print("seconds until running again:", {k: round(v, 1) for k, v in run.times_s.items()})


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_embedded_server_is_restarted(tmp_path: Path) -> None:
    folder = tmp_path / "chaos"
    with tamiyo(tmp_path, "train", *small(tmp_path, "chaos", learner__updates=1_000_000)) as command:
        metrics = folder / "metrics.jsonl"
        command.wait_for(lambda: len(rows(metrics)) >= 2, 90.0)
        children = psutil.Process(command.process.pid).children()
        (server,) = [p for p in children if p.name().endswith("-server")]
        server.kill()
        killed, update = time.monotonic(), len(rows(metrics))
        command.wait_for(lambda: len(rows(metrics)) >= update + 2)
        print(f"embedded redis: running again after {time.monotonic() - killed:.1f} s")
        assert "the embedded Redis server died and was restarted" in command.out
        assert command.end(30) == 130
        assert command.left() == []
    ids = [row["episode_id"] for row in rows(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids))
    assert not psutil.pid_exists(server.pid)
