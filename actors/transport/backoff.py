"""`Backoff`: exponential delays between consecutive failures."""

from __future__ import annotations

import time


class Backoff:
    """Delays of `first_s`, twice that, and so on up to `max_s`; a success resets them."""

    def __init__(self, first_s: float = 0.25, max_s: float = 30.0) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._due_s = 0.0  # by the monotonic clock
        self.failures = 0  # consecutive

    def fail(self) -> float:
        """Record a failure and return the seconds to wait before the next attempt."""
        delay_s = min(self._max_s, self._first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        self._due_s = time.monotonic() + delay_s
        return delay_s

    def succeed(self) -> None:
        """Reset the delays."""
        self.failures = 0
        self._due_s = 0.0

    @property
    def due(self) -> bool:
        """Whether the delay after the last failure is over."""
        return time.monotonic() >= self._due_s
