"""`Supervisor`: one run's learner and actors, kept going by a thread that needs nobody to watch it.

On one machine it lives in the launching process; on a cluster in a detached Ray actor, whose driver may come and go.
"""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import ray

from actors.config import ActingConfig
from actors.errors import UserError
from actors.metrics.ray import RayMetrics
from actors.transport.redis import connect
from actors.workers.worker_pool import UNPLACED_S, WorkerPool
from deploy.launch.comparison import compare
from deploy.launch.learner_actor import LearnerActor
from deploy.launch.monitor import RunMonitor
from deploy.report.progress import Snapshot
from learner.checkpoint import LearnerProgress
from learner.service import LearnerSettings, LearnerStatus

TICK_S = 0.1
SHOWN = 400  # points of the history of returns that are told, about, the newest among them


class Phase(StrEnum):
    TRAINING = "training"
    COMPARING = "comparing"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


OVER = (Phase.DONE, Phase.STOPPED, Phase.FAILED)


@dataclass(frozen=True)
class RunPlan:
    """All that a supervisor is given."""

    name: str
    acting: ActingConfig
    learner: LearnerSettings
    reference_episodes: int
    actors_redis: str = field(repr=False)  # may hold a password

    @property
    def run_dir(self) -> Path:
        return Path(self.learner.run_dir)

    @property
    def hosts(self) -> bool:
        """Whether seed hosts are trained on, and not a Gymnasium environment."""
        return not self.acting.gym.id


@dataclass(frozen=True)
class RunStatus:
    phase: Phase
    run_dir: str
    snapshot: Snapshot
    notes: list[str] = field(default_factory=list)  # from the asked one on
    noted: int = 0  # as many there are in all
    error: str = ""  # of Phase.FAILED, one line
    saved: bool = True  # of Phase.STOPPED: whether the learner wrote a last checkpoint


class Supervisor:
    """Starts at once. `poll` says how the run is, `stop` asks for its end, `close` frees what it holds."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self._notes: list[str] = []
        self._stop, self._at_once = threading.Event(), threading.Event()
        self._saved = True
        self._phase = Phase.TRAINING
        self._error = ""
        self._returns: list[float] = []
        self._metrics: dict[str, float] = {}
        self._progress = LearnerProgress()
        self._began_s = time.monotonic()
        self._placeless_told = False
        self._up_s, self._made_room = self._began_s, False
        s = plan.learner
        self._keeper = LearnerActor(s, learner_gpus(s, plan.acting), self._notes.append)  # its place comes first
        self._fleet = WorkerPool(plan.acting, plan.name, s.seed, plan.actors_redis, s.namespace, self._notes.append)
        self._metrics_out = RayMetrics("supervisor", plan.name)
        self._watch = RunMonitor(lambda: connect(s.redis, s.queue, s.namespace), self._metrics_out.report, self._counts)
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def poll(self, notes_seen: int = 0) -> RunStatus:
        """Notes after the first `notes_seen`, or all of them where those were another supervisor's, before this one."""
        noted = len(self._notes)
        notes = self._notes[notes_seen if notes_seen <= noted else 0 : noted]
        return RunStatus(
            self._phase, self.plan.learner.run_dir, self._snapshot(), notes, noted, self._error, self._saved
        )

    def stop(self) -> None:
        """Ask for the end: the checkpoint is written, and the phase becomes STOPPED."""
        self._stop.set()

    def close(self, at_once: bool = False) -> None:
        """End whatever still runs; `at_once` without waiting for the learner's last checkpoint."""
        if at_once:
            self._at_once.set()
        self._stop.set()
        self._thread.join()
        self._watch.close()
        self._metrics_out.close()
        self._fleet.stop()
        self._keeper.close()

    def _run(self) -> None:
        try:
            if self._train():
                self._phase = Phase.COMPARING
                baselines = "the random policy and never-grow" if self.plan.hosts else "the random policy"
                self._notes.append(f"measuring {baselines} on the same seeds ...")
                plan = self.plan
                compare(self._fleet, plan.run_dir, plan.reference_episodes, plan.hosts, self._stop.is_set)
            self._phase = Phase.STOPPED if self._stop.is_set() else Phase.DONE
        except UserError as error:
            self._fail(str(error))
        except Exception as error:
            trace = self.plan.run_dir / "error.txt"
            trace.write_text(traceback.format_exc())
            self._fail(f"the run failed ({type(error).__name__}: {error}): what happened is in {trace}")

    def _fail(self, line: str) -> None:
        self._error, self._phase = " ".join(line.split()), Phase.FAILED

    def _train(self) -> bool:
        """Until the learner is done; False when told to stop before."""
        while not self._stop.is_set():
            status = self._keeper.tick()
            self._hear(status)
            if status.done:
                break
            self._fleet.pump(timeout_s=0.0)
            self._fit()
            self._tell_placeless()
            self._stop.wait(TICK_S)
        stopped = self._stop.is_set()
        self._saved = self._keeper.stop(self._at_once.is_set)
        self._hear(self._keeper.status)
        return not stopped

    def _fit(self) -> None:
        """With `actors.count: auto`: actors for what room there is. A learner that lost its machine comes first: it is
        waited for, and given the place of one of them."""
        now = time.monotonic()
        if self._keeper.up:
            self._up_s, self._made_room = now, False
            self._fleet.autoscale(ray.available_resources)
        elif not self._made_room and now - self._up_s > UNPLACED_S:
            self._made_room = True
            self._fleet.release_one()

    def _hear(self, status: LearnerStatus) -> None:
        if status.progress is not None:
            self._progress = status.progress
        self._notes += status.new_notes
        for metrics in status.new_metrics:
            self._metrics = metrics
            self._returns.append(metrics["return_mean"])

    def _tell_placeless(self) -> None:
        """Once: a cluster may still be growing while the run starts."""
        if self._placeless_told or time.monotonic() - self._began_s < UNPLACED_S:
            return
        self._placeless_told = True
        actors = self.plan.acting.actors.at_least
        have, needed = ray.cluster_resources().get("CPU", 0.0), actors + 1
        if have < needed:
            self._notes.append(
                f"the cluster has {have:g} CPUs, and learner and {actors} actors need {needed}: "
                "those without a place start when it grows"
            )

    def _counts(self) -> dict[str, float]:
        return self._fleet.counts() | {"learner_restarts": self._keeper.restarts}

    def _snapshot(self) -> Snapshot:
        c, p = self.plan.learner.config, self._progress
        now = time.monotonic()
        elapsed_s = now - (self._keeper.began_s or now)
        remaining = [] if c.max_seconds is None else [max(0.0, c.max_seconds - elapsed_s)]
        if self._returns:
            remaining.append((c.updates - p.update) * elapsed_s / len(self._returns))
        return Snapshot(
            update=p.update,
            updates_total=c.updates,
            elapsed_s=elapsed_s,
            max_seconds=c.max_seconds,
            episodes=p.episodes_trained,
            episodes_per_s=self._metrics.get("episodes_per_s", 0.0),
            return_mean=self._metrics.get("return_mean"),
            return_history=self._returns[:: -1 - len(self._returns) // SHOWN][::-1],
            policy_lag=self._metrics.get("policy_lag_mean", 0.0),
            queue_depth=int(self._metrics.get("queue_depth", 0)),
            actors_alive=self._fleet.alive,
            actors_total=self._fleet.size,
            restarts=self._fleet.totals.restarts + self._keeper.restarts,
            eta_s=min(remaining) if remaining else None,
            unit="points" if self.plan.hosts else "",
        )


def learner_gpus(learner: LearnerSettings, acting: ActingConfig) -> float:
    """A GPU for the learner where the cluster has one to spare, else what its actors leave of the only one."""
    have = ray.cluster_resources().get("GPU", 0.0)
    if learner.config.device == "cpu" or not have:
        return 0.0
    left = have - acting.actors.at_least * acting.actors.gpus_per_actor
    if left <= 0:
        raise UserError(
            f"{acting.actors.at_least} actors x {acting.actors.gpus_per_actor} GPUs leave the learner none of "
            f"{have:g}: lower actors.gpus_per_actor"
        )
    return float(min(1.0, left))
