"""Waiting for a learner that was told to stop: as long as it makes progress, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from actors.heartbeat import StallTimer

T = TypeVar("T")
STOP_S = 6.0  # without progress, after which a learner that was told to stop is ended: Ctrl-C then takes about ten
LOOK_S = 0.25


def has_ended(
    wait: Callable[[float], bool],
    beats: Callable[[], int],
    slowest_s: float = 0.0,
    at_once: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until it ends; False where it made no progress for too long, or `at_once` became true.

    `wait(timeout_s)` returns whether it has ended, `beats` counts its signs of progress. One whose own pauses took up
    to `slowest_s` so far is given twice that.
    """
    still, seen = StallTimer(), beats()
    while not wait(LOOK_S):
        now = beats()
        if now != seen:
            seen = now
            still.progressed()
        if at_once() or still.poll() > max(STOP_S, 2 * slowest_s):
            return False
    return True


def in_thread(call: Callable[[], T]) -> Future[T]:
    """The result of `call`, which runs in a daemon thread: a process can exit while it hangs."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # raised by whoever asks for the result
            result.set_exception(error)

    threading.Thread(target=run, name="stop", daemon=True).start()
    return result
