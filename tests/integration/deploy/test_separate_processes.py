"""`tamiyo learner` and `tamiyo actors` as separate processes that share a Redis server with a password."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.launch.embedded_redis import find_server
from learner.run.checkpoint import load_checkpoint
from tests.support.launching import rows, running, small, tamiyo

pytestmark = [pytest.mark.integration, pytest.mark.slow]
PASSWORD = "a-word-for-tests"


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[int]:
    """The port of a Redis server on loopback with a password."""
    settings = ["--port", str(free_port), "--bind", "127.0.0.1", "--requirepass", PASSWORD, "--save", "", "--dir"]
    with running(tmp_path, [str(find_server()), *settings, str(tmp_path)], {}) as process:
        process.wait_for(lambda: "Ready to accept connections" in process.out, 10)
        yield free_port


@pytest.mark.long
def test_one_ctrl_c_stops_a_learner_whose_redis_server_hangs(tmp_path: Path, server: int) -> None:
    flags = [*small(tmp_path, "alone"), "--redis", f"redis://127.0.0.1:{server}/0"]
    (process,) = [p for p in psutil.Process().children() if any(str(server) in word for word in p.cmdline())]
    with tamiyo(tmp_path, "learner", *flags, TAMIYO_REDIS_PASSWORD=PASSWORD) as learner:
        learner.wait_for(lambda: "waiting for episodes" in learner.out)
        process.suspend()
        time.sleep(1.0)  # a request that is under way
        assert learner.end(30, signal.SIGINT) == 130, learner.out + learner.err
        assert learner.err == ""
        assert "did not stop in time" in learner.out
        assert learner.left() == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_learner_service_resumes_its_run_and_stays_up_when_finished(tmp_path: Path, server: int) -> None:
    url, folder = f"redis://127.0.0.1:{server}/0", tmp_path / "kept"
    secret = {"TAMIYO_REDIS_PASSWORD": PASSWORD}

    def flags(updates: int, *more: str) -> list[str]:
        return [*small(tmp_path, "kept", learner__updates=updates), "--redis", url, *more]

    with tamiyo(tmp_path, "actors", *flags(2), **secret):
        for updates in (2, 4):
            with tamiyo(tmp_path, "learner", *flags(updates, "--run.service"), **secret) as learner:
                learner.wait_for(lambda running=learner: "serving metrics until stopped" in running.out, 120)  # type: ignore[misc]
                assert learner.end(10) == 0, learner.out + learner.err
        with tamiyo(tmp_path, "learner", *flags(4), **secret) as refused:
            assert refused.wait() == 2
            assert "already holds a run" in refused.err
    assert [row["update"] for row in rows(folder / "metrics.jsonl")] == [1, 2, 3, 4]
    assert load_checkpoint(folder).progress.generation == 2
