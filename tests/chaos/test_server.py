"""The server is killed, with and without a file of its own, and brought back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.launch.embedded_redis import EmbeddedRedis
from tests.chaos.harness import HurtRun, hurt_run
from tests.support.launching import rows, small, tamiyo

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
AWAY_S = 3.0


@pytest.fixture(scope="module", params=[True, False], ids=["append-only", "in memory"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HurtRun]:
    root = tmp_path_factory.mktemp("hurt")
    with EmbeddedRedis(append_only=request.param) as server, hurt_run(root, "hurt", server) as run:
        yield run


def test_a_server_that_dies_is_waited_for(run: HurtRun) -> None:
    server = run.server
    assert isinstance(server, EmbeddedRedis)
    before = run.ledger()
    killed = run.update
    os.kill(server.pid, signal.SIGKILL)
    time.sleep(AWAY_S)
    assert run.update <= killed + 1  # one may have been under way
    assert server.restart_if_dead()
    run.running_again("redis", time.monotonic())
    told = run.command.out.count("waiting for it")
    assert told <= 1
    run.wait_for(lambda: run.command.out.count("Redis answers again") == told)  # by the next look at the learner
    after = run.identities()
    assert after.trained > before.trained  # also a server without memory was told what it had known
    assert after.accepted >= before.accepted


def test_the_ledger_and_the_lineage_agree_at_the_end(run: HurtRun) -> None:
    run.wait_for_updates(2)
    ledger = run.end()
    assert len(ledger.actors) == 1  # nobody died of it


def test_the_embedded_server_is_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "hurt"
    with tamiyo(tmp_path, "train", *small(tmp_path, "hurt", learner__updates=1_000_000)) as command:
        command.wait_for(lambda: len(rows(folder / "metrics.jsonl")) >= 2, 90.0)
        children = psutil.Process(command.process.pid).children()
        (server,) = [p for p in children if p.name().endswith("-server")]
        server.kill()
        killed, update = time.monotonic(), len(rows(folder / "metrics.jsonl"))
        command.wait_for(lambda: len(rows(folder / "metrics.jsonl")) >= update + 2)
        print(f"embedded redis: running again after {time.monotonic() - killed:.1f} s")
        assert "the embedded Redis server died and was restarted" in command.out
        command.process.send_signal(signal.SIGTERM)
        assert command.wait(30) == 130
        assert command.left() == []
    ids = [row["episode_id"] for row in rows(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids))
    assert not psutil.pid_exists(server.pid)
