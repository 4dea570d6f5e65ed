"""`HangDetector`: detects a busy Ray actor that makes no progress, from outside its process."""

from __future__ import annotations

import time

from actors.heartbeat import StallTimer
from actors.workers.process_handle import ProcessHandle
from actors.workers.pulse import Pulse

MAX_INTERVAL_S = 5.0  # between two pulses, and between two looks at them


def pulse_interval_s(hang_s: float) -> float:
    """Return how often an actor writes its pulse, and its supervisor reads it."""
    return min(MAX_INTERVAL_S, hang_s / 10)


class HangDetector:
    """An actor hangs if the heartbeats of its pulse do not change for `hang_s` seconds of a task."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s, self._interval_s = hang_s, pulse_interval_s(hang_s)
        self._process: ProcessHandle | None = None
        self.start()

    def watch(self, process: ProcessHandle | None) -> None:
        """Watch this process from now on, or none."""
        self._process = process
        self.start()

    def start(self) -> None:
        """Restart the timer; call this whenever the actor is given a task."""
        self._beats = -1
        self._stall = StallTimer()
        self._poll_at_s = time.monotonic() + self._interval_s

    def hangs(self) -> bool:
        """Return whether the actor hangs."""
        now = time.monotonic()
        if self._process is not None and now >= self._poll_at_s:
            self._poll_at_s = now + self._interval_s
            pulse = Pulse.read(self._process)
            if pulse is not None and pulse.beats != self._beats:
                self._beats = pulse.beats
                self._stall.progressed()
        return self._stall.poll() > self._hang_s + self._interval_s  # it may have made progress after its last pulse

    @property
    def place(self) -> str:
        """The frames in which the actor hangs, "" if unknown."""
        pulse = Pulse.read(self._process) if self._process is not None else None
        return pulse.place if pulse is not None else ""
