"""`RayRolloutWorker`: a Ray actor that runs a `RolloutWorker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
import torch

from actors.heartbeat import Heartbeat
from actors.metrics.ray import RayMetrics
from actors.workers.process_handle import ProcessHandle
from actors.workers.rollout_worker import PolicyName, RolloutWorker, SampleReport, WorkerSettings, warm_up

REPORT_S = 1.0  # an actor acts on its own for this long, then reports to its supervisor and is called again
HEARTBEATS = "heartbeats"  # concurrency group with a thread of its own, so that a busy actor can be polled


class RayRolloutWorker:
    """Builds its `RolloutWorker` at the first call rather than in the constructor, so that its errors can be raised
    to the caller."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker: RolloutWorker | None = None
        self._heartbeat = Heartbeat()

    def assign(self, settings: WorkerSettings) -> ProcessHandle:
        """Play with these settings from now on; return the actor's process. A reply means that it has started."""
        if settings != self._settings:
            self._settings, self._worker = settings, None
        return ProcessHandle.here()

    def warm_up(self) -> ProcessHandle:
        """Load and compile all that sampling needs, so that the first wave starts at once; return the process."""
        torch.set_num_threads(1)
        self._worker = None
        warm_up(self._settings)
        return ProcessHandle.here()

    @ray.method(concurrency_group=HEARTBEATS)
    def beats(self) -> int:
        """Return the number of heartbeats so far."""
        return self._heartbeat.beats

    def run(self) -> SampleReport:
        """Sample and ship for about `REPORT_S`; see `RolloutWorker.run`."""
        return self._get_worker().run(REPORT_S)

    def play(self, player: PolicyName, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        """See `RolloutWorker.play`."""
        return self._get_worker().play(player, seeds, deterministic)

    def _get_worker(self) -> RolloutWorker:
        if self._worker is None:
            torch.set_num_threads(1)
            restarted = self._settings.restarted or ray.get_runtime_context().was_current_actor_reconstructed
            report = RayMetrics(f"actor-{self._settings.index}", self._settings.run).report
            self._worker = RolloutWorker(self._settings, restarted, report, self._heartbeat)
        return self._worker
