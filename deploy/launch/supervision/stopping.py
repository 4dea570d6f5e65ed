"""Wait for a learner to stop, as long as it makes progress."""

from __future__ import annotations

from collections.abc import Callable

from actors.heartbeat import StallTimer

STOP_S = 6.0  # seconds without progress after which a stopping learner is killed; Ctrl-C then takes about ten
POLL_S = 0.25


def wait_until_stopped(
    wait: Callable[[float], bool],
    beats: Callable[[], int],
    longest_pause_s: float = 0.0,
    at_once: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until a learner has stopped. Returns False if it makes no progress for too long, or `at_once` becomes true.

    `wait(timeout_s)` returns whether it has stopped, `beats` returns its number of heartbeats. The limit is the larger
    of `STOP_S` and twice `longest_pause_s`, the longest pause between its heartbeats so far.
    """
    stall_timer = StallTimer()
    while not wait(POLL_S):
        if at_once() or stall_timer.poll(beats()) > max(STOP_S, 2 * longest_pause_s):
            return False
    return True
