"""`HangDetector`: detects a busy Ray actor that makes no progress, from outside its process."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from actors.heartbeat import StallTimer
from actors.workers.ray_worker import RayRolloutWorker

MAX_INTERVAL_S = 10.0  # between polls


class HangDetector:
    """An actor hangs if its heartbeat count does not change, or cannot be read, for `hang_s` seconds."""

    def __init__(self, handle: ActorHandle[RayRolloutWorker], hang_s: float) -> None:
        self._handle, self._hang_s = handle, hang_s
        self._interval_s = min(MAX_INTERVAL_S, hang_s / 5)
        self.start()

    def start(self) -> None:
        """Restart the timer; call this whenever the actor is given a task."""
        self._call: Any = None
        self._beats = -1
        self._stall = StallTimer()
        self._poll_at_s = time.monotonic()

    def hangs(self) -> bool:
        """Poll without blocking and return whether the actor hangs. A dead actor does not count as hung."""
        now = time.monotonic()
        if self._call is not None and ray.wait([self._call], timeout=0)[0]:
            call, self._call = self._call, None
            try:
                beats = ray.get(call)
            except RayActorError:
                self.start()
                return False
            if beats != self._beats:
                self._beats = beats
                self._stall.progressed()
        if self._call is None and now >= self._poll_at_s:
            self._poll_at_s = now + self._interval_s
            self._call = self._handle.beats.remote()
        return self._stall.poll() > self._hang_s + self._interval_s  # it may have made progress after the last poll
