"""Backoff between failures, and waiting for an unreachable store or a full disk."""

from __future__ import annotations

import errno
import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from actors.errors import UserError
from actors.transport.base import Unreachable
from actors.transport.retry import Retry
from learner.run.disk import until_there_is_room
from learner.run.metrics_log import MetricsLog


def failing(times: int, error: Exception) -> Callable[[], str]:
    """A call that raises `error` the given number of times, then succeeds."""
    return Mock(side_effect=[error] * times + ["done"])


def test_retry_reports_the_start_and_the_end_of_an_outage_once() -> None:
    lines: list[str] = []
    retry = Retry(lines.append)
    assert retry(failing(2, Unreachable("Redis does not answer"))) == "done"
    assert [line.split(",")[0] for line in lines] == ["Redis does not answer; waiting for it", "Redis answers again"]
    assert 0.7 < retry.outage_s < 5


@pytest.mark.parametrize("error", [ValueError("wrong"), UserError("give a url"), Unreachable("gone")])
def test_retry_raises_errors_other_than_outages_at_once_and_those_when_stopped(error: Exception) -> None:
    retry = Retry(stop=lambda: True) if isinstance(error, Unreachable) else Retry()
    with pytest.raises(type(error), match=str(error)):
        retry(failing(1, error))


def test_writes_wait_for_room_on_a_full_disk_and_raise_other_errors(tmp_path: Path) -> None:
    reports: list[str] = []
    full = OSError(errno.ENOSPC, "No space left on device")
    assert until_there_is_room(failing(2, full), tmp_path, reports.append, lambda: False) == "done"
    assert len(reports) == 2
    assert str(tmp_path) in reports[0]
    with pytest.raises(UserError, match="free some"):
        until_there_is_room(failing(1, full), tmp_path, reports.append, lambda: True)
    with pytest.raises(PermissionError):
        until_there_is_room(failing(1, PermissionError("no")), tmp_path, reports.append, lambda: False)


def test_a_partially_written_line_is_completed_and_not_repeated(tmp_path: Path) -> None:
    """A limit on the file size truncates a write, as a full disk does."""

    def retry(write: Callable[[], None]) -> None:
        try:
            write()
        except OSError:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            write()

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = MetricsLog(tmp_path, tmp_path, 0, retry)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        log.write_episodes(1, [{"episode_id": f"run/actor/1/{i}"} for i in range(20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
        log.close()
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode_id"] for line in lines] == [f"run/actor/1/{i}" for i in range(20)]
