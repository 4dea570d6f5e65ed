"""`PlacedActor`: a Ray actor and the process in which it is; `Closing` lets actors close their environments before they
are killed."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from actors.workers.hang_detector import Pulse
from actors.workers.process_handle import ProcessHandle
from actors.workers.ray_worker import RayRolloutWorker

CLOSE_S = 10.0  # time limit for finishing a step and closing the environments


@dataclass(eq=False)
class PlacedActor:
    """An actor as its pool knows it."""

    handle: ActorHandle[RayRolloutWorker]
    process: ProcessHandle | None = None  # after its first reply

    def started(self, process: ProcessHandle) -> None:
        """Record its process, perhaps after a restart."""
        if self.process not in (None, process):
            self._forget()
        self.process = process

    def kill(self) -> None:
        """Kill it for good."""
        ray.kill(self.handle)
        self._forget()

    def _forget(self) -> None:
        if self.process is not None:
            Pulse.forget(self.process)


class Closing:
    """Actors that are being closed. Each is killed when it has closed its environments, or after `CLOSE_S`."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, PlacedActor, float]] = []

    def begin(self, actor: PlacedActor, call: Any) -> None:
        """Close an actor; the call that it is in, if any, ends after its current step."""
        handle: Any = actor.handle
        if call is not None:
            ray.cancel(call)
        self._pending.append((handle.close.remote(), actor, time.monotonic() + CLOSE_S))

    def tend(self, wait_s: float = 0.0) -> None:
        """Kill actors that have closed, waiting up to `wait_s` for one, and those whose time is up."""
        calls = [call for call, _, _ in self._pending]
        closed = ray.wait(calls, num_returns=1, timeout=wait_s)[0] if calls else []
        for entry in [e for e in self._pending if e[0] in closed or time.monotonic() > e[2]]:
            self._pending.remove(entry)
            if entry[0] in closed:
                with suppress(RayError):  # it died
                    ray.get(entry[0])
            entry[1].kill()

    def finish(self) -> None:
        """Wait until all are killed."""
        while self._pending:
            self.tend(0.25)
