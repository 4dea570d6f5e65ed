"""`RayRolloutWorker`: the Ray actor around an `RolloutWorker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
import torch

from actors.heartbeat import Heartbeat
from actors.metrics.ray import RayMetrics
from actors.workers.process_handle import ProcessHandle
from actors.workers.rollout_worker import Player, RolloutWorker, WaveReport, WorkerSettings

SIGNS = "signs"  # concurrency group, a thread of its own: signs of life are asked for while the actor is at work


class RayRolloutWorker:
    """Made at once, whatever its settings: what can fail happens in calls, whose errors reach the fleet as they are."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._incarnation: RolloutWorker | None = None
        self._heartbeat = Heartbeat()

    def ping(self) -> ProcessHandle:
        """Returns once the process is there, and says where."""
        return ProcessHandle.here()

    @ray.method(concurrency_group=SIGNS)
    def beats(self) -> int:
        """Signs of progress so far."""
        return self._heartbeat.beats

    def sample(self) -> WaveReport:
        return self._life().sample()

    def play(self, player: Player, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        return self._life().play(player, seeds, deterministic)

    def _life(self) -> RolloutWorker:
        if self._incarnation is None:
            torch.set_num_threads(1)
            reborn = self._settings.reborn or ray.get_runtime_context().was_current_actor_reconstructed
            report = RayMetrics(f"actor-{self._settings.index}", self._settings.run).report
            self._incarnation = RolloutWorker(self._settings, reborn, report, self._heartbeat)
        return self._incarnation


def limit_threads() -> dict[str, str]:
    """Environment of a worker process: one thread per numerical library."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
