"""`RayRolloutWorker`: a Ray actor that runs a `RolloutWorker`."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch

from actors.env.gym.frames import current_frames, own_frames
from actors.errors import UserError
from actors.heartbeat import Heartbeat, Stopped
from actors.metrics.ray import RayMetrics
from actors.workers.faults.actor_logs import log_path, redirect_output
from actors.workers.faults.failure import ActorFailure
from actors.workers.faults.reaper import start_reaper
from actors.workers.process_handle import ProcessHandle
from actors.workers.rollout_worker import PolicyName, RolloutWorker, SampleReport, WorkerSettings, warm_up

T = TypeVar("T")
REPORT_S = 1.0  # an actor acts on its own for this long, then reports to its supervisor and is called again
HEARTBEATS = "heartbeats"  # concurrency group with a thread of its own, so that a busy actor can be polled


class RayRolloutWorker:
    """Builds its `RolloutWorker` at the first call rather than in the constructor, so that its errors can be raised
    to the caller: `UserError` as it is, any other as an `ActorFailure`. Environments are closed before."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker: RolloutWorker | None = None
        self._heartbeat = Heartbeat()
        self._thread = 0  # in which environments run
        self._log: Path | None = None  # that receives what this process prints
        self._reaped = False  # whether the process has a reaper

    def assign(self, settings: WorkerSettings) -> ProcessHandle:
        """Play with these settings from now on; return the actor's process. A reply means that it has started."""
        if settings != self._settings:
            self.close()
            self._settings = settings
        return ProcessHandle.here()

    def warm_up(self) -> ProcessHandle:
        """Load and compile all that sampling needs, so that the first wave starts at once; return the process."""
        self.close()
        self._guard(lambda: warm_up(self._settings), "spare")
        return ProcessHandle.here()

    @ray.method(concurrency_group=HEARTBEATS)
    def beats(self) -> int:
        """Return the number of heartbeats so far."""
        return self._heartbeat.beats

    @ray.method(concurrency_group=HEARTBEATS)
    def place(self) -> str:
        """Return the frames in which the environments, or this package, are at the moment; "" if they do not run."""
        frame = sys._current_frames().get(self._thread)
        return current_frames(frame) if frame is not None else ""

    @ray.method(concurrency_group=HEARTBEATS)
    def stop(self) -> None:
        """End the call in progress after its current step. The actor can then only be closed."""
        self._heartbeat.stopping = True

    def run(self) -> SampleReport | None:
        """Sample and ship for about `REPORT_S`; see `RolloutWorker.run`. Returns None if it was stopped."""
        try:
            return self._guard(lambda: self._get_worker().run(REPORT_S))
        except Stopped:
            return None

    def play(self, player: PolicyName, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        """See `RolloutWorker.play`. Returns an empty list if it was stopped."""
        try:
            return self._guard(lambda: self._get_worker().play(player, seeds, deterministic))
        except Stopped:
            return []

    def close(self) -> None:
        """Close the environments."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _guard(self, call: Callable[[], T], log: str = "") -> T:
        """Return `call()`. Raises its errors for the supervisor, after the environments have been closed. `log` is the
        name of the log, by default the actor's."""
        self._prepare(log or self._settings.name)
        try:
            return call()
        except (UserError, Stopped):
            self.close()
            raise
        except BaseException as error:
            self.close()
            if isinstance(error, SystemExit) and not own_frames(error):
                raise  # Ray ends the process
            raise ActorFailure.of(error) from None

    def _prepare(self, log: str) -> None:
        """Prepare this process for running environments."""
        torch.set_num_threads(1)
        self._thread = threading.get_ident()
        if self._settings.logs and self._log != (path := log_path(self._settings.logs, log)):
            self._log = path
            redirect_output(path)
        if self._settings.acting.gym.id and not self._reaped:
            self._reaped = True
            start_reaper()

    def _get_worker(self) -> RolloutWorker:
        if self._worker is None:
            with warnings.catch_warnings(action="ignore"):  # of Ray itself, which would be the last words of the actor
                again = ray.get_runtime_context().was_current_actor_reconstructed
            restarted = self._settings.restarted or again
            report = RayMetrics(f"actor-{self._settings.index}", self._settings.run).report
            self._worker = RolloutWorker(self._settings, restarted, report, self._heartbeat)
        return self._worker
