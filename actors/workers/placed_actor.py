"""`PlacedActor`: a Ray actor, and the process in which it is."""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray.actor import ActorHandle

from actors.workers.hang_detector import Pulse
from actors.workers.process_handle import ProcessHandle
from actors.workers.ray_worker import RayRolloutWorker


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
