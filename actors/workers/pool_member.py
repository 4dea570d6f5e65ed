"""`PoolMember`: a Ray actor as its pool knows it; `Closing` lets actors close their environments before they are
killed."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from actors.transport.retry import Backoff
from actors.workers.hang_detector import HangDetector, Pulse
from actors.workers.process_handle import ProcessHandle
from actors.workers.rollout_worker import WorkerSettings

CLOSE_S = 10.0  # time limit for finishing a step and closing the environments
PING_INTERVAL_S = 0.25  # for an actor that is being restarted
SENT_S = 0.02  # before a call is cancelled: of one that is cancelled while it is sent, Ray may lose all that follow
UNPLACED_S = 20.0  # time without a process after which an actor is taken to lack resources rather than to be starting


@dataclass(eq=False)
class PoolMember:
    """An actor, its process, and the call that it is in."""

    settings: WorkerSettings
    handle: Any  # of a `RayRolloutWorker`
    hang_detector: HangDetector
    process: ProcessHandle | None = None  # after its first reply
    call: Any = None  # object reference of the pending reply
    incarnation: int = 0
    alive: bool = False  # has replied since its last start
    lost: bool = False  # a process that had replied, since the last report
    evaluating: bool = False  # in its call
    up_since_s: float = field(default_factory=time.monotonic)
    down_since_s: float = field(default_factory=time.monotonic)
    next_ping_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)  # between restarts

    @property
    def name(self) -> str:
        return self.settings.name

    def started(self, process: ProcessHandle) -> None:
        """Record its process, perhaps after a restart."""
        if self.process != process:
            self._forget_pulse()
        self.process, self.up_since_s = process, time.monotonic()

    def mark_down(self) -> None:
        """Record that it has no process."""
        if self.alive:
            self.lost, self.down_since_s = True, time.monotonic()
        self.alive, self.next_ping_s = False, time.monotonic() + PING_INTERVAL_S

    def hangs(self) -> bool:
        """Whether it has replied since its last start and now hangs in a call."""
        busy = self.alive and self.call is not None and self.hang_detector.hangs(self.process)
        return busy and not ray.wait([self.call], timeout=0)[0]

    @property
    def unplaced(self) -> bool:
        """Whether the cluster seems to lack resources for this actor. Actors that keep dying do not lack resources."""
        return not self.alive and self.backoff.failures < 2 and time.monotonic() - self.down_since_s > UNPLACED_S

    def kill(self) -> None:
        """Kill it for good."""
        ray.kill(self.handle)
        self._forget_pulse()

    def _forget_pulse(self) -> None:
        if self.process is not None:
            Pulse.forget(self.process)


class Closing:
    """Actors that are being closed. Each is killed when it has closed its environments, or after `CLOSE_S`."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, PoolMember, float]] = []

    def begin(self, member: PoolMember) -> None:
        """Close an actor; the call that it is in, if any, ends after its current step."""
        if member.call is not None and not ray.wait([member.call], timeout=SENT_S)[0]:
            ray.cancel(member.call)
        self._pending.append((member.handle.close.remote(), member, time.monotonic() + CLOSE_S))

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
