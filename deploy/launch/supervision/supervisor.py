"""`Supervisor`: runs and restarts the learner and the actors of one run from a background thread.

On one machine it lives in the launching process, on a cluster in a detached Ray actor that is independent of drivers.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import ray

from actors.errors import UserError
from actors.metrics.ray import RayMetrics
from actors.transport.redis import connect
from actors.workers.placement import learner_gpus, node_gpus
from actors.workers.pool_member import UNPLACED_S
from actors.workers.rollout_worker import WorkerSettings
from actors.workers.worker_pool import WorkerPool
from deploy.config.schema import Config
from deploy.launch.best_policy import BestPolicy
from deploy.launch.comparison import Comparison
from deploy.launch.process_settings import acting, actors_redis, learner_settings
from deploy.launch.ray.local_ray import ray_has_ended
from deploy.launch.supervision.endpoint_pool import EndpointPool
from deploy.launch.supervision.learner_actor import LearnerActor
from deploy.launch.supervision.monitor import RunMonitor
from deploy.report.numbers import number
from deploy.report.progress import clock
from learner.run.checkpoint import LearnerProgress
from learner.service import LearnerStatus

TICK_S = 0.1
MAX_UNTAKEN = 10_000  # updates whose metrics are kept for a caller that may never ask


class Phase(StrEnum):
    """The phases of a run."""

    TRAINING = "training"
    COMPARING = "comparing"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


FINISHED = (Phase.DONE, Phase.STOPPED, Phase.FAILED)


@dataclass(frozen=True)
class RunStatus:
    """The status of a run at one moment."""

    phase: Phase
    run_dir: str
    progress: str  # one line
    notes: list[str] = field(default_factory=list)  # log lines that the caller has not seen
    notes_total: int = 0  # number of all log lines so far
    error: str = ""  # one line; only in Phase.FAILED
    saved: bool = True  # whether the learner wrote a last checkpoint; only in Phase.STOPPED


class Supervisor:
    """Supervises a run from the moment it is created: `poll` its status, `stop` it, and `close` it at the end."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        """Start a run with these settings, which have its name, in its folder."""
        self._run_dir, self._config = run_dir.absolute(), config
        self._settings = s = learner_settings(config, run_dir.resolve())
        self._notes: list[str] = []
        self._best = BestPolicy(self._run_dir, config, self._notes.append)
        self._stop, self._at_once = threading.Event(), threading.Event()
        self.trained = threading.Event()  # set when the training has ended, however it did
        self._saved = True
        self._phase = Phase.TRAINING
        self._error = ""
        self._metrics: dict[str, float] = {}  # the newest of each
        self._untaken: deque[dict[str, float]] = deque(maxlen=MAX_UNTAKEN)  # of updates, for `take_updates`
        self._updates = 0  # since the supervisor has started
        self._progress = LearnerProgress()
        self._began_s = self._up_s = time.monotonic()
        self._warned_about_cpus = self._made_room = False
        # The learner is created first, so that actors cannot take its resources.
        nodes = node_gpus()
        gpus = learner_gpus(config.learner.device, config.actors, nodes, grows=bool(config.run.address))
        if config.learner.device == "auto" and not gpus and any(nodes):
            self._notes.append("the actors reserve all GPUs: the learner runs on the CPU")
        self._learner = LearnerActor(s, gpus, self._notes.append)
        name, redis = self._run_dir.name, actors_redis(config)
        self._pool: WorkerPool | EndpointPool
        if config.external.spaces:
            self._pool = EndpointPool(run_dir, redis, self._notes.append)
        else:
            first = WorkerSettings(acting(config), 0, name, s.seed, redis, s.namespace, s.run_dir)
            self._pool = WorkerPool(first, self._notes.append, gpus)
        self._reporter = RayMetrics("supervisor", name)
        self._monitor = RunMonitor(
            lambda: connect(s.redis, s.queue, s.namespace),
            self._reporter.report,
            lambda: self._pool.counts() | {"learner_restarts": self._learner.restarts},
        )
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def poll(self, notes_seen: int = 0) -> RunStatus:
        """Return the status, with the notes after the first `notes_seen`.

        A restarted supervisor has fewer notes than its predecessor; then all of them are returned.
        """
        total = len(self._notes)
        notes = self._notes[notes_seen if notes_seen <= total else 0 : total]
        return RunStatus(self._phase, str(self._run_dir), self._progress_line(), notes, total, self._error, self._saved)

    def take_updates(self) -> list[dict[str, float]]:
        """Return the metrics of the updates since the last call."""
        return [self._untaken.popleft() for _ in range(len(self._untaken))]

    def stop(self) -> None:
        """Ask the run to write a checkpoint and stop; the phase then becomes STOPPED."""
        self._stop.set()

    def close(self, at_once: bool = False) -> None:
        """Stop everything; with `at_once`, do not wait for the learner's last checkpoint."""
        if at_once:
            self._at_once.set()
        self._stop.set()
        self._thread.join()
        self._monitor.close()
        self._reporter.close()
        if isinstance(self._pool, EndpointPool) or not ray_has_ended():
            self._pool.stop(at_once)
        if not ray_has_ended():
            self._learner.close()

    def _run(self) -> None:
        try:
            complete = self._train()
            self.trained.set()
            if complete:
                self._phase = Phase.COMPARING
                self._compare()
            self._phase = Phase.DONE if complete else Phase.STOPPED
            return
        except UserError as error:
            line = str(error)
        except BaseException as error:  # whatever it is, whoever follows the run waits for its end
            line, trace = f"the run failed ({type(error).__name__}: {error})", self._run_dir / "error.txt"
            try:
                trace.write_text(traceback.format_exc())
                line += f"; the traceback is in {trace}"
            except OSError as full:
                line += f"; {trace} cannot be written either ({full.strerror}): continue with --resume when it can"
        self._error, self._phase = " ".join(line.split()), Phase.FAILED
        self.trained.set()

    def _train(self) -> bool:
        """Run learner and actors until the learner is done. Returns False if the run was stopped before."""
        while not self._stop.is_set():
            status = self._learner.tick()
            self._record(status)
            if status.done:
                break
            self._pool.pump(TICK_S)
            self._evaluate()
            self._scale_actors()
            self._warn_about_cpus()
        stopped = self._stop.is_set()
        self._saved = self._learner.stop(lambda: self._at_once.is_set() or ray_has_ended())
        self._record(self._learner.status)
        return not stopped

    def _evaluate(self) -> None:
        if isinstance(self._pool, EndpointPool):
            return
        evaluation = self._pool.take_evaluation()
        if evaluation is not None:
            self._best.take(evaluation)
        elif self._best.due and not self._pool.evaluating:
            self._pool.evaluate(self._best.seeds, self._best.began())

    def _compare(self) -> None:
        play = self._pool.play if isinstance(self._pool, WorkerPool) else None
        elapsed_s, note, stop = self._progress.elapsed_s, self._notes.append, self._stop.is_set
        if play is not None:
            self._best.finish(play, stop, elapsed_s)
        Comparison(self._run_dir, self._config, elapsed_s, note, stop, play, self._pool.size).run()

    def _scale_actors(self) -> None:
        """Adapt an automatic number of actors to the cluster; for a learner without a place, an actor is removed."""
        if isinstance(self._pool, EndpointPool):  # it reserves nothing
            return
        now = time.monotonic()
        if self._learner.up:
            self._up_s, self._made_room = now, False
            self._pool.autoscale(ray.available_resources)
        elif not self._made_room and now - self._up_s > UNPLACED_S:
            self._made_room = True
            self._pool.release_one()

    def _record(self, status: LearnerStatus) -> None:
        if status.progress is not None:
            self._progress = status.progress
        self._notes += status.new_notes
        self._updates += len(status.new_metrics)
        self._untaken += status.new_metrics
        for metrics in status.new_metrics:
            self._metrics |= metrics
            self._best.after_update(metrics)

    def _warn_about_cpus(self) -> None:
        """Warn once if the cluster stays too small, since it may still be growing while the run starts."""
        if self._warned_about_cpus or time.monotonic() - self._began_s < UNPLACED_S:
            return
        self._warned_about_cpus = True
        actors = self._config.actors.at_least
        have, needed = ray.cluster_resources().get("CPU", 0.0), actors + 1
        if have < needed:
            self._notes.append(
                f"the cluster has {have:g} CPUs, but the learner and {actors} actors need {needed}: "
                "the remaining actors start when it grows"
            )

    def _progress_line(self) -> str:
        c, p, m, pool = self._settings.config, self._progress, self._metrics, self._pool
        now = time.monotonic()
        elapsed_s = now - (self._learner.began_s or now)
        left = [] if c.max_seconds is None else [max(0.0, c.max_seconds - elapsed_s)]
        if self._updates:
            done = p.update / c.updates if c.total_steps is None else p.env_steps / c.total_steps
            left.append((1 - done) / done * p.update * elapsed_s / self._updates)
        gained = f"waiting for {c.batch_episodes} episodes"
        if c.batch_steps:
            gained += f" and {c.batch_steps} steps"
        if self._updates:  # until the first episode ends, there is no return
            name = "return" if "return_mean" in m else "reward/step"
            gained = f"{name} {number(m.get('return_mean', m['reward_mean'])):>6}"
        made = f"update {p.update}" + ("" if c.max_seconds else f"/{c.updates}")
        if c.total_steps is not None:
            made = f"step {p.env_steps}/{c.total_steps}"
        restarts = pool.restarts + self._learner.restarts
        return (
            f"{clock(elapsed_s)}  {made}  {gained}  episodes {p.episodes_trained} "
            f"({m.get('episodes_per_s', 0.0):.1f}/s)  lag {m.get('policy_lag_mean', 0.0):.1f}  "
            f"queue {m.get('queue_depth', 0):.0f}  actors {pool.alive}/{pool.size}"
            + (f" ({restarts} restarted)" if restarts else "")
            + (f"  eta {clock(min(left))}" if left else "")
        )
