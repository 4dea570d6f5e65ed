"""`Backoff`: delays between failures; `Retry`: repeats a call while the store is unreachable, and reports outages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from actors.errors import UserError
from actors.transport.base import LoginRefused, Unreachable

LOGIN_S = 60.0  # longest wait for a login that is refused, during which its password may be renewed
T = TypeVar("T")


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


def is_outage(error: BaseException) -> bool:
    """Whether the error means that the store did not answer, during a call or while connecting."""
    return isinstance(error, Unreachable) or isinstance(error.__cause__, Unreachable)


class Retry:
    """Repeats calls while the store is unreachable, with exponential backoff and without a limit on attempts.

    Args:
        report: receives one line when an outage begins and one when it ends.
        stop: once it returns true, an outage is raised instead of waited for.
        heartbeat: called before every attempt.
    """

    def __init__(
        self,
        report: Callable[[str], None] = lambda line: None,
        stop: Callable[[], bool] = lambda: False,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        self._report, self._stop, self._heartbeat = report, stop, heartbeat
        self.outage_s = 0.0  # total over all calls

    def __call__(self, call: Callable[[], T]) -> T:
        """Return `call()`. Raises its errors at once, except for outages, which are raised only when `stop()` is
        true, and refused logins, which are raised after `LOGIN_S`."""
        backoff = Backoff(0.25, 2.0)
        start_s = time.monotonic()
        while True:
            self._heartbeat()
            try:
                result = call()
            except (Unreachable, UserError) as error:
                if not is_outage(error) or self._stop():
                    raise
                if isinstance(error.__cause__, LoginRefused) and time.monotonic() - start_s > LOGIN_S:
                    raise
                if not backoff.failures:
                    self._report(f"{error if isinstance(error, Unreachable) else error.__cause__}; waiting for it")
                time.sleep(backoff.fail())
                continue
            if backoff.failures:
                outage_s = time.monotonic() - start_s
                self.outage_s += outage_s
                self._report(f"Redis answers again, after {outage_s:.1f} s")
            return result
