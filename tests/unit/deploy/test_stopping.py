"""What was told to stop is waited for while it makes progress, and given up when it makes none."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from actors.heartbeat import StallTimer
from deploy.launch import stopping
from deploy.launch.stopping import run_in_thread, wait_until_stopped


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STOP_S", 0.3)
    monkeypatch.setattr(stopping, "POLL_S", 0.02)


def test_what_makes_progress_is_waited_for_longer_than_the_limit() -> None:
    beats, end_s = itertools.count(), time.monotonic() + 1.0

    def wait(timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return time.monotonic() > end_s

    assert wait_until_stopped(wait, lambda: next(beats))


@pytest.mark.parametrize("longest_pause_s", [0.0, 0.5])
def test_what_makes_none_is_given_up(longest_pause_s: float) -> None:
    never, began_s = threading.Event(), time.monotonic()
    assert not wait_until_stopped(never.wait, lambda: 7, longest_pause_s)
    assert time.monotonic() - began_s >= max(0.3, 2 * longest_pause_s)


def test_nothing_is_waited_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STOP_S", 1e9)
    assert not wait_until_stopped(threading.Event().wait, lambda: 7, at_once=lambda: True)


def test_a_result_or_an_error_comes_out_of_the_thread() -> None:
    assert run_in_thread(lambda: 3).result(5) == 3
    with pytest.raises(ZeroDivisionError):
        run_in_thread(lambda: 1 // 0).result(5)


def test_the_longest_pause_is_known() -> None:
    still = StallTimer()
    time.sleep(0.2)
    still.moved()
    still.moved()
    known = still.longest_s
    assert known >= 0.2
    time.sleep(2 * known)  # not over yet
    assert still.look() > known
    assert still.longest_s == known
