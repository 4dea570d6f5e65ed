"""`Retry`: a store that does not answer is waited for, told once, and never given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from actors.errors import UserError
from actors.transport.backoff import Backoff
from actors.transport.base import Unreachable

T = TypeVar("T")


def is_outage(error: BaseException) -> bool:
    """Whether the store did not answer, be it in mid-run or while connecting."""
    return isinstance(error, Unreachable) or isinstance(error.__cause__, Unreachable)


class Retry:
    """Repeats calls while the store does not answer, unless `stop`; `tell` hears when that begins and when it ends, and
    `beat` is called with every attempt."""

    def __init__(
        self,
        tell: Callable[[str], None] = lambda line: None,
        stop: Callable[[], bool] = lambda: False,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._tell, self._stop, self._beat = tell, stop, beat
        self.away_s = 0.0  # in all

    def __call__(self, call: Callable[[], T]) -> T:
        """`call`'s result. Raises what `call` raises, once told to stop also for a store that does not answer."""
        backoff = Backoff(0.25, 2.0)
        began = time.monotonic()
        while True:
            self._beat()
            try:
                result = call()
            except (Unreachable, UserError) as error:
                if not is_outage(error) or self._stop():
                    raise
                if not backoff.failures:
                    self._tell(f"{error if isinstance(error, Unreachable) else error.__cause__}; waiting for it")
                time.sleep(backoff.fail())
                continue
            if backoff.failures:
                away_s = time.monotonic() - began
                self.away_s += away_s
                self._tell(f"Redis answers again, after {away_s:.1f} s")
            return result
