"""Waiting for a learner to stop: it continues while there is progress, and gives up without."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from actors.heartbeat import StallTimer
from deploy.launch.supervision import stopping
from deploy.launch.supervision.stopping import wait_until_stopped


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
