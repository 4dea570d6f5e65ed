"""`PlacedActor`: a Ray actor with what its pool must know of it; `Spares`: started ones that wait for a death."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from actors.workers.hang_detector import Pulse
from actors.workers.process_handle import ProcessHandle
from actors.workers.ray_worker import RayRolloutWorker

log = logging.getLogger(__name__)
DELAY_S = 10.0  # from the time at which all actors play to the start of a spare, whose imports take seconds of a core
RETRY_S = 0.5  # between two attempts to reach a spare that is starting


@dataclass(eq=False)
class PlacedActor:
    """May be exchanged for another one, under whose name it then plays."""

    handle: ActorHandle[RayRolloutWorker]
    reserves: bool  # whether it holds a reservation of a CPU
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


class Spares:
    """Keeps up to `wanted` spares.

    A spare reserves no resources. When it takes an actor's place, the dead actor becomes the next spare: Ray restarts
    it, and it keeps its reservation. So the pool's reservations always are one for each of its actors.
    """

    def __init__(self, wanted: int, create: Callable[[], PlacedActor]) -> None:
        self._wanted, self._create = wanted, create
        self._all_alive_since_s: float | None = None
        self._calls: list[tuple[PlacedActor, Any, float]] = []  # warming up: actor, pending reply, time of next look
        self._ready: list[PlacedActor] = []

    @property
    def ready(self) -> int:
        """Number of spares that can take over at once."""
        return len(self._ready)

    def tend(self, all_alive: bool) -> None:
        """Start missing spares and collect the replies of those that are warming up, without blocking."""
        now = time.monotonic()
        self._all_alive_since_s = (self._all_alive_since_s or now) if all_alive else None
        settled = self._all_alive_since_s is not None and now - self._all_alive_since_s >= DELAY_S
        if settled and len(self._calls) + len(self._ready) < self._wanted:
            self._warm_up(self._create())
        for entry in [entry for entry in self._calls if now >= entry[2] and ray.wait([entry[1]], timeout=0)[0]]:
            self._calls.remove(entry)
            self._collect(*entry[:2])

    def exchange(self, dead: PlacedActor) -> PlacedActor | None:
        """Return a spare for a dead actor, which becomes a spare in turn; None if there is none."""
        if not self._ready:
            return None
        spare = self._ready.pop(0)
        self._warm_up(dead)
        return spare

    def release_reservation(self) -> None:
        """Kill a spare that holds a reservation, after the pool has removed an actor that held none."""
        self._kill([actor for actor in self._all() if actor.reserves][:1])

    def stop(self) -> None:
        """Kill all spares."""
        self._wanted = 0
        self._kill(self._all())

    def _all(self) -> list[PlacedActor]:
        return [*self._ready, *(entry[0] for entry in self._calls)]

    def _kill(self, actors: list[PlacedActor]) -> None:
        self._ready = [other for other in self._ready if other not in actors]
        self._calls = [entry for entry in self._calls if entry[0] not in actors]
        for actor in actors:
            actor.kill()

    def _warm_up(self, actor: PlacedActor) -> None:
        handle: Any = actor.handle
        self._calls.append((actor, handle.warm_up.remote(), time.monotonic() + RETRY_S))

    def _collect(self, actor: PlacedActor, call: Any) -> None:
        try:
            actor.started(ray.get(call))
        except RayActorError:  # being restarted
            self._warm_up(actor)
            return
        except RayTaskError as error:
            # an actor that plays meets the same error and reports it; a process that has started is still of use
            log.debug("a spare actor could not be warmed up: %s", error)
        self._ready.append(actor)
