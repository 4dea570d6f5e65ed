"""Waiting for a learner to stop while there is progress; the end of a run whose folder can no longer be written."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from actors.heartbeat import StallTimer
from deploy.launch.supervision import stopping
from deploy.launch.supervision.stopping import wait_until_stopped
from deploy.launch.supervision.supervisor import Phase, Supervisor


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STOP_S", 0.3)
    monkeypatch.setattr(stopping, "POLL_S", 0.02)


def test_waits_longer_than_the_limit_while_there_is_progress() -> None:
    beats, end_s = itertools.count(), time.monotonic() + 0.6

    def wait(timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return time.monotonic() > end_s

    assert wait_until_stopped(wait, lambda: next(beats))


@pytest.mark.parametrize(("at_once", "pause_s", "least_s"), [(False, 0.0, 0.3), (False, 0.2, 0.4), (True, 1e9, 0.0)])
def test_gives_up_without_progress_or_at_once(at_once: bool, pause_s: float, least_s: float) -> None:
    never, began_s = threading.Event(), time.monotonic()
    assert not wait_until_stopped(never.wait, lambda: 7, pause_s, at_once=lambda: at_once)
    assert time.monotonic() - began_s >= least_s


def test_the_stall_timer_reports_the_longest_pause_that_is_over() -> None:
    still = StallTimer()
    time.sleep(0.1)
    assert still.poll(1) == 0.0
    known = still.longest_s
    time.sleep(2 * known)
    assert still.poll(1) > known == still.longest_s >= 0.1


def test_a_run_ends_whose_error_cannot_be_written(tmp_path: Path) -> None:
    """Otherwise a command that follows the run would never learn that it has ended."""
    supervisor: Any = object.__new__(Supervisor)
    supervisor._run_dir = tmp_path / "gone"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    supervisor._train, supervisor.trained = Mock(side_effect=full), threading.Event()
    supervisor._run()
    assert supervisor._phase is Phase.FAILED
    assert "No space left" in supervisor._error
    assert "error.txt cannot be written either" in supervisor._error
    assert supervisor.trained.is_set()  # the thread that waits for the end of the training continues
