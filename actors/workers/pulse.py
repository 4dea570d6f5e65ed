"""The pulse of an actor: how far its main thread is, written to Ray's key-value store by another thread.

Ray runs an actor's methods in its main thread only if there is no other thread for them, and environments need the main
thread (`signal.alarm`, event loops, some windows). So a busy actor cannot be called: it reports its own progress. What
an ended process leaves, some hundred bytes, stays until the cluster ends.
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
from actors.heartbeat import Heartbeat
from actors.workers.process_handle import ProcessHandle

log = logging.getLogger(__name__)
NAMESPACE = "tamiyo"


class Pulse(NamedTuple):
    """Heartbeats so far, and if the last one is a while ago, the frames in which the main thread is."""

    beats: int
    place: str

    @classmethod
    def read(cls, process: ProcessHandle) -> Pulse | None:
        """Return the last pulse of a process, or None if it has written none."""
        text = internal_kv._internal_kv_get(_key(process), namespace=NAMESPACE)
        return cls(*json.loads(text)) if text else None


def start_pulse(process: ProcessHandle, heartbeat: Heartbeat, interval_s: float) -> None:
    """Write the pulse of the calling process at this interval until the process ends, as far as it has changed."""

    def write() -> None:
        key, main, last = _key(process), threading.main_thread().ident, Pulse(-1, "")
        while True:
            beats = heartbeat.beats
            place = current_frames(sys._current_frames()[main or 0]) if beats == last.beats else ""
            if (pulse := Pulse(beats, place)) != last:
                try:
                    internal_kv._internal_kv_put(key, json.dumps(pulse), namespace=NAMESPACE)
                    last = pulse
                except Exception as error:  # the head node is away; Ray ends this process if it stays away
                    log.debug("the pulse could not be written: %s", error)
            time.sleep(interval_s)

    threading.Thread(target=write, name="pulse", daemon=True).start()


def _key(process: ProcessHandle) -> str:
    return f"pulse/{process.node}/{process.pid}/{process.created_s}"
