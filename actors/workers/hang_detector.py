"""`HangDetector`: detects a busy Ray actor that makes no progress, by its pulse in Ray's key-value store.

Ray runs an actor's methods in its main thread only if there is no other thread for them, and environments need the main
thread (`signal.alarm`, event loops, some windows). So a busy actor cannot be called: another thread of its process
reports how far the main thread is.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import NamedTuple

from ray.experimental import internal_kv

from actors.gym.frames import current_frames
from actors.heartbeat import Heartbeat, StallTimer
from actors.workers.process_handle import ProcessHandle

log = logging.getLogger(__name__)
NAMESPACE = "tamiyo"
MAX_INTERVAL_S = 5.0  # between two pulses, and between two looks at them


class Pulse(NamedTuple):
    """Heartbeats so far, and if the last one is a while ago, the frames in which the main thread is."""

    beats: int = -1
    place: str = ""

    @classmethod
    def read(cls, process: ProcessHandle | None) -> Pulse:
        """Return the last pulse of a process; an empty one if it has written none."""
        text = internal_kv._internal_kv_get(_key(process), namespace=NAMESPACE) if process is not None else None
        return cls(*json.loads(text)) if text else cls()

    @staticmethod
    def forget(process: ProcessHandle) -> None:
        """Delete the pulse of a process that has ended."""
        internal_kv._internal_kv_del(_key(process), namespace=NAMESPACE)


def start_pulse(process: ProcessHandle, heartbeat: Heartbeat, hang_s: float) -> None:
    """Write the pulse of the calling process until the process ends, as far as it has changed."""

    def write() -> None:
        key, main, last = _key(process), threading.main_thread().ident, Pulse()
        while True:
            beats = heartbeat.beats
            place = current_frames(sys._current_frames()[main or 0]) if beats == last.beats else ""
            if (pulse := Pulse(beats, place)) != last:
                try:
                    internal_kv._internal_kv_put(key, json.dumps(pulse), namespace=NAMESPACE)
                    last = pulse
                except Exception as error:  # the head node is away; Ray ends this process if it stays away
                    log.debug("the pulse could not be written: %s", error)
            time.sleep(_interval_s(hang_s))

    threading.Thread(target=write, name="pulse", daemon=True).start()


def _key(process: ProcessHandle) -> str:
    return f"pulse/{process.node}/{process.pid}/{process.created_s}"


def _interval_s(hang_s: float) -> float:
    return min(MAX_INTERVAL_S, hang_s / 10)


class HangDetector:
    """An actor hangs if the heartbeats of its pulse do not change for `hang_s` seconds of a task."""

    def __init__(self, hang_s: float) -> None:
        self._hang_s, self._interval_s = hang_s, _interval_s(hang_s)
        self.start()

    def start(self) -> None:
        """Restart the timer; call this whenever the actor is given a task."""
        self._stall = StallTimer()
        self._poll_at_s = time.monotonic() + self._interval_s

    def hangs(self, process: ProcessHandle | None) -> bool:
        """Return whether the actor hangs, whose process this is."""
        beats = None
        if time.monotonic() >= self._poll_at_s:
            self._poll_at_s = time.monotonic() + self._interval_s
            beats = Pulse.read(process).beats
        # It may have made progress after its last pulse.
        return self._stall.poll(beats) > self._hang_s + self._interval_s
