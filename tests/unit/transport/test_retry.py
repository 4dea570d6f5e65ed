"""Waiting: growing pauses, a store that is away, a disk that is full."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.errors import UserError
from actors.transport.backoff import Backoff
from actors.transport.base import Unreachable
from actors.transport.redis import connect
from actors.transport.retry import Retry
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.disk import until_there_is_room
from learner.metrics_log import MetricsLog


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def call() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "done"

    return call


def test_waits_grow_to_a_bound_and_a_success_starts_them_anew() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.fail() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert not backoff.due
    backoff.succeed()
    assert backoff.due
    assert backoff.fail() == 0.5


def test_a_store_that_is_away_is_told_once_when_it_goes_and_once_when_it_is_back() -> None:
    said: list[str] = []
    patience = Retry(said.append)
    assert patience(failing(2, Unreachable("Redis does not answer"))) == "done"
    assert [line.split(",")[0] for line in said] == ["Redis does not answer; waiting for it", "Redis answers again"]
    assert 0.7 < patience.away_s < 5


def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    with pytest.raises(ValueError, match="wrong"):
        Retry()(failing(1, ValueError("wrong")))
    with pytest.raises(UserError, match="give a url"):
        Retry()(failing(1, UserError("give a url")))
    with pytest.raises(Unreachable):
        Retry(stop=lambda: True)(failing(1, Unreachable("gone")))


def test_a_server_that_is_not_there_yet_is_waited_for_also_while_connecting() -> None:
    with EmbeddedRedis() as server:
        url = server.url
        os.kill(server.pid, signal.SIGKILL)
        calls = 0

        def connect_at_last() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                assert server.restart_if_dead()
            connect(url).close()

        Retry()(connect_at_last)
        assert calls >= 3


def test_a_disk_without_room_is_waited_for_and_other_errors_are_not(tmp_path: Path) -> None:
    said: list[str] = []
    full = OSError(errno.ENOSPC, "No space left on device")
    assert until_there_is_room(failing(2, full), tmp_path, said.append, lambda: False) == "done"
    assert len(said) == 2
    assert str(tmp_path) in said[0]
    with pytest.raises(UserError, match="free some"):
        until_there_is_room(failing(1, full), tmp_path, said.append, lambda: True)
    with pytest.raises(PermissionError):
        until_there_is_room(failing(1, PermissionError("no")), tmp_path, said.append, lambda: False)


def test_a_line_whose_writing_was_cut_short_is_completed_and_not_repeated(tmp_path: Path) -> None:
    """The file-size limit cuts a write in its middle, as a full disk does."""

    def retry(write: Callable[[], None]) -> None:
        try:
            write()
        except OSError:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            write()

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = MetricsLog(tmp_path, 0, retry)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        log.write_episodes(1, [{"episode_id": f"run/actor/1/{i}"} for i in range(20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
        log.close()
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode_id"] for line in lines] == [f"run/actor/1/{i}" for i in range(20)]
