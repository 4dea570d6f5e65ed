"""Heartbeats tell a slow process from a hung one: `Heartbeat` counts them, `StallTimer` times their absence."""

from __future__ import annotations

import time


class Heartbeat:
    """Calling it is one beat; `beats` may be read by another thread."""

    def __init__(self) -> None:
        self.beats = 0

    def __call__(self) -> None:
        self.beats += 1


class StallTimer:
    """Seconds that something was seen to stand still. While nobody looked, nobody knows: between two looks, `UNSEEN_S`
    count at most."""

    UNSEEN_S = 1.0

    def __init__(self) -> None:
        self._still_s, self._looked_s = 0.0, time.monotonic()

    def look(self) -> float:
        now = time.monotonic()
        self._still_s += min(self.UNSEEN_S, now - self._looked_s)
        self._looked_s = now
        return self._still_s

    def moved(self) -> None:
        self._still_s, self._looked_s = 0.0, time.monotonic()
