"""Signal handling: stop a run on SIGINT or SIGTERM, and restore handlers that libraries replace.

Python handles signals in the main thread only; a run in another thread of the user's program leaves them to it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def own_signals() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM on exit; `ray.init`, for example, replaces them."""
    handlers = {number: signal.getsignal(number) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set. A second signal raises `KeyboardInterrupt`."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with own_signals():
        for number in _signals():
            signal.signal(number, handle)
        yield stop


def _signals() -> tuple[signal.Signals, ...]:
    """Return the signals that this thread can handle."""
    in_main = threading.current_thread() is threading.main_thread()
    return (signal.SIGINT, signal.SIGTERM) if in_main else ()
