"""A server with an append-only file is killed and restarted, and so is the one that a run embeds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.harness import chaos_run
from tests.support.launching import rows, small, tamiyo

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
OUTAGE_S = 3.0


def test_a_run_waits_for_a_killed_server(tmp_path: Path) -> None:
    with EmbeddedRedis(append_only=True) as server, chaos_run(tmp_path, "chaos", server) as run:
        before = run.ledger()
        killed = run.update
        os.kill(server.pid, signal.SIGKILL)
        time.sleep(OUTAGE_S)
        assert run.update <= killed + 1  # one may have been under way
        assert server.restart_if_dead()
        run.running_again("redis", time.monotonic())
        outages = run.command.out.count("waiting for it")
        assert outages <= 1
        run.wait_for(lambda: run.command.out.count("Redis answers again") == outages)  # at the next poll
        after = run.identities()
        assert after.trained > before.trained
        assert after.accepted >= before.accepted
        run.wait_for_updates(2)
        assert len(run.end().actors) == 1  # no process died


def test_a_killed_embedded_server_is_restarted(tmp_path: Path) -> None:
    folder = tmp_path / "chaos"
    with tamiyo(tmp_path, "train", *small(tmp_path, "chaos", learner__updates=1_000_000)) as command:
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
