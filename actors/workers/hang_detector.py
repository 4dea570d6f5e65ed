"""`HangDetector`: whether an actor at work still gets on, as seen from outside."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from actors.heartbeat import StallTimer
from actors.workers.ray_worker import RayRolloutWorker

PACE_S = 10.0  # between questions, at most


class HangDetector:
    """An actor whose beats stand still for `hang_s`, or that does not tell them, hangs."""

    def __init__(self, handle: ActorHandle[RayRolloutWorker], hang_s: float) -> None:
        self._handle, self._hang_s = handle, hang_s
        self.begin()

    def begin(self) -> None:
        """It was given something to do: time starts anew."""
        self._call: Any = None
        self._beats = -1
        self._still = StallTimer()
        self._ask_at_s = time.monotonic()

    def hangs(self) -> bool:
        """Look, without waiting. Of an actor that dies others will know."""
        now = time.monotonic()
        if self._call is not None and ray.wait([self._call], timeout=0)[0]:
            call, self._call = self._call, None
            try:
                beats = ray.get(call)
            except RayActorError:
                self.begin()
                return False
            if beats != self._beats:
                self._beats = beats
                self._still.moved()
        if self._call is None and now >= self._ask_at_s:
            self._ask_at_s = now + min(PACE_S, self._hang_s / 5)
            self._call = self._handle.beats.remote()
        return self._still.look() > self._hang_s
