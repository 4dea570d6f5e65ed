"""`RayRolloutWorker`: a Ray actor that runs a `RolloutWorker` in the main thread of its process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
import torch

from actors.errors import UserError
from actors.gym.frames import own_frames
from actors.heartbeat import Heartbeat, Stopped
from actors.metrics.ray import RayMetrics
from actors.workers.faults.actor_logs import log_path, redirect_output
from actors.workers.faults.actor_reports import ActorFailure
from actors.workers.faults.reaper import start_reaper
from actors.workers.hang_detector import start_pulse
from actors.workers.process_handle import ProcessHandle
from actors.workers.rollout_worker import PolicyEvaluation, PolicyName, RolloutWorker, SampleReport, WorkerSettings

T = TypeVar("T")
REPORT_S = 1.0  # an actor acts on its own for this long, then reports to its supervisor and is called again


class RayRolloutWorker:
    """Builds its `RolloutWorker` at the first call rather than in the constructor, so that its errors can be raised
    to the caller: `UserError` as it is, any other as an `ActorFailure`. Environments are closed before.

    While a call is in progress, other calls wait; see `Pulse` for what is known meanwhile. `ray.cancel` ends a call
    after its current step.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker: RolloutWorker | None = None
        self._heartbeat = Heartbeat(lambda: ray.get_runtime_context().is_canceled())
        self._process: ProcessHandle | None = None
        self._prepared = False  # the process

    def start(self) -> ProcessHandle:
        """Return the handle of this process, which has a pulse from then on."""
        if self._process is None:
            self._process = ProcessHandle.here()
            start_pulse(self._process, self._heartbeat, self._settings.acting.actors.hang_s)
        return self._process

    def run(self) -> SampleReport | None:
        """Sample and ship for about `REPORT_S`; see `RolloutWorker.run`. Returns None if it was cancelled."""
        return self._guard(lambda: self._get_worker().run(REPORT_S))

    def play(self, player: PolicyName, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        """See `RolloutWorker.play`. Returns an empty list if it was cancelled."""
        return self._guard(lambda: self._get_worker().play(player, seeds, deterministic)) or []

    def evaluate(self, seeds: Sequence[int], limit_s: float) -> PolicyEvaluation | None:
        """See `RolloutWorker.evaluate`. Returns None if it was cancelled."""
        return self._guard(lambda: self._get_worker().evaluate(seeds, limit_s))

    def close(self) -> None:
        """Close the environments."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _guard(self, call: Callable[[], T]) -> T | None:
        """Return `call()`, None if it was cancelled. Raises its errors for the supervisor, after the environments have
        been closed."""
        self._prepare()
        try:
            return call()
        except BaseException as error:
            self.close()
            if isinstance(error, Stopped):
                return None
            if isinstance(error, UserError) or (isinstance(error, SystemExit) and not own_frames(error)):
                raise  # of a SystemExit, Ray ends the process
            raise ActorFailure.from_error(error) from None

    def _prepare(self) -> None:
        if self._prepared:
            return
        self._prepared = True
        torch.set_num_threads(1)
        if self._settings.acting.gym.id:
            start_reaper()
        if self._settings.logs:
            redirect_output(log_path(self._settings.logs, self._settings.name))

    def _get_worker(self) -> RolloutWorker:
        if self._worker is None:
            with warnings.catch_warnings(action="ignore"):  # of Ray itself, which would be the last words of the actor
                again = ray.get_runtime_context().was_current_actor_reconstructed
            restarted = self._settings.restarted or again
            report = RayMetrics(f"actor-{self._settings.index}", self._settings.run).report
            self._worker = RolloutWorker(self._settings, restarted, report, self._heartbeat)
        return self._worker
