"""Heartbeats distinguish a slow process from a hung one: `Heartbeat` counts them, `StallTimer` times their absence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Stopped(BaseException):
    """Raised by a heartbeat, between two steps of work, in a process that is to end. Not an error of the work."""


class Heartbeat:
    """A counter that each call increments; another thread may read `beats`.

    A call raises `Stopped` if `stopping()`, which is asked at most every `ASK_S`.
    """

    ASK_S = 0.1

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self.beats = 0
        self._stopping = stopping
        self._asked_at_s = -math.inf

    def __call__(self) -> None:
        self.beats += 1
        now = time.monotonic()
        if now - self._asked_at_s >= self.ASK_S:
            self._asked_at_s = now
            if self._stopping():
                raise Stopped


class StallTimer:
    """Seconds without observed progress.

    The time between two polls counts for at most `MAX_GAP_S`, so that a pause of the observer (a suspended machine, a
    long call) is not mistaken for a stall. `longest_s` is the longest stall that ended in progress.
    """

    MAX_GAP_S = 1.0

    def __init__(self) -> None:
        self._beats = -1
        self._stalled_s, self._polled_at_s = 0.0, time.monotonic()
        self.longest_s = 0.0

    def poll(self, beats: int | None = None) -> float:
        """Return the seconds since the last progress, which is a number of `beats` other than the last one."""
        now = time.monotonic()
        self._stalled_s += min(self.MAX_GAP_S, now - self._polled_at_s)
        self._polled_at_s = now
        if beats not in (None, self._beats):
            self._beats, self.longest_s, self._stalled_s = beats, max(self.longest_s, self._stalled_s), 0.0
        return self._stalled_s
