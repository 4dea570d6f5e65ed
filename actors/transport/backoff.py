"""`Backoff`: growing waits between attempts that fail in a row."""

from __future__ import annotations

import time


class Backoff:
    """Waits of `first_s`, twice that, and so on up to `most_s`; a success starts them anew."""

    def __init__(self, first_s: float = 0.25, most_s: float = 30.0) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._due_s = 0.0
        self.failures = 0  # in a row

    def fail(self) -> float:
        """Count a failure; returns the seconds to wait now."""
        delay_s = min(self._most_s, self._first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        self._due_s = time.monotonic() + delay_s
        return delay_s

    def succeed(self) -> None:
        self.failures = 0
        self._due_s = 0.0

    @property
    def due(self) -> bool:
        """Whether the wait after the last failure is over."""
        return time.monotonic() >= self._due_s
