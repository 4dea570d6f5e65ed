"""The server that a run embeds is killed and restarted."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tests.support.launching import rows, small, tamiyo

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


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
        assert command.end(30) == 130
        assert command.left() == []
    ids = [row["episode_id"] for row in rows(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids))
    assert not psutil.pid_exists(server.pid)
