"""The one-machine launch: server, Ray, one learner, its actors, progress, references, report."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from rich.console import Console

from actors.episode import EndReason
from actors.errors import UserError
from actors.fleet import ActorFleet
from actors.transport.redis import connect
from actors.worker import Player, limit_threads
from deploy.config import Config
from deploy.embedded_redis import EmbeddedRedis
from deploy.launch import (
    acting,
    compile_environments,
    learner_report,
    learner_settings,
    local_ray,
    namespace,
    open_run,
    stop_on_signal,
)
from deploy.progress import Progress, Snapshot
from learner.checkpoint import list_checkpoints
from learner.service import LearnerService, LearnerStatus


def train(config: Config, resume: Path | None = None) -> int:
    """A whole run on this machine. Returns 0, or 130 when it was interrupted (and can be resumed)."""
    run_dir = open_run(config, resume)
    console = Console(highlight=False)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        if config.run.redis:
            redis = config.run.redis
            connect(redis, config.queue, namespace(config)).close()  # one that is not there is told before Ray starts
        else:
            redis = stack.enter_context(EmbeddedRedis()).url
        compile_environments(config, console)
        stack.enter_context(local_ray(config))
        launch = _Launch(config, run_dir, redis, resuming=bool(list_checkpoints(run_dir / "checkpoints")))
        launch.follow(stop, console)
        interrupted = stop.is_set()
        if not interrupted:
            baselines = "the random policy" if config.gym.id else "the random policy and never-grow"
            console.print(f"measuring {baselines} on the same seeds ...")
            interrupted = not launch.compare(stop)
    if interrupted:
        console.print(
            f"stopped; the checkpoint is written. Go on with: tamiyo train --resume {run_dir}", soft_wrap=True
        )
        return 130
    from deploy.report import headline, write_report

    page = write_report(run_dir)
    console.print(headline(run_dir), soft_wrap=True)
    console.print(f"report: {page}", soft_wrap=True)
    return 0


class _Launch:
    """The learner's process and the actors' of one run."""

    def __init__(self, config: Config, run_dir: Path, redis: str, resuming: bool) -> None:
        self.config, self.run_dir = config, run_dir
        remote: Any = ray.remote(
            num_cpus=1,
            num_gpus=1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0,
            runtime_env={"env_vars": limit_threads()},
        )(LearnerService)
        self.learner = remote.remote(learner_settings(config, run_dir, redis, resuming), learner_report)
        self.fleet = ActorFleet(acting(config), run_dir.name, config.run.seed, redis, namespace(config))
        self._returns: list[float] = []
        self._metrics: dict[str, float] = {}

    def follow(self, stop: threading.Event, console: Console) -> None:
        """Until the learner is done or a stop is asked for; the checkpoint is written either way."""
        try:
            ray.get(self.learner.start.remote())
            began = time.monotonic()
            with Progress(self.run_dir.name, console) as progress:
                while True:
                    status: LearnerStatus = ray.get(self.learner.poll.remote())
                    self.fleet.pump(timeout_s=0.0)
                    for note in status.new_notes:
                        progress.note(note)
                    progress.update(self._snapshot(status, time.monotonic() - began))
                    if status.done or stop.wait(0.25):
                        break
            ray.get(self.learner.stop.remote())
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from error
            raise
        except RayActorError as error:
            raise UserError(
                f"the learner's process died ({str(error).splitlines()[0]}): go on with --resume {self.run_dir}"
            ) from error

    def _snapshot(self, status: LearnerStatus, elapsed_s: float) -> Snapshot:
        for metrics in status.new_metrics:
            self._metrics = metrics
            self._returns.append(metrics["return_mean"])
        c, p = self.config.learner, status.progress
        remaining = [] if c.max_seconds is None else [max(0.0, c.max_seconds - elapsed_s)]
        done = len(self._returns)
        if done:
            remaining.append((c.updates - p.update) * elapsed_s / done)
        return Snapshot(
            update=p.update,
            updates_total=c.updates,
            elapsed_s=elapsed_s,
            max_seconds=c.max_seconds,
            episodes=p.episodes_trained,
            episodes_per_s=self._metrics.get("episodes_per_s", 0.0),
            return_mean=self._metrics.get("return_mean"),
            return_history=self._returns,
            policy_lag=self._metrics.get("policy_lag_mean", 0.0),
            queue_depth=int(self._metrics.get("queue_depth", 0)),
            actors_alive=self.fleet.alive,
            actors_total=self.fleet.size,
            restarts=self.fleet.totals.restarts,
            eta_s=min(remaining) if remaining else None,
            unit="" if self.config.gym.id else "points",
        )

    def compare(self, stop: threading.Event) -> bool:
        """Play seeds of the last fifth again with the policies to compare with; False when interrupted."""
        rows = [json.loads(line) for line in (self.run_dir / "episodes.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row["end_reason"] != EndReason.CUT]  # a segment is no whole episode
        if not rows:
            return not stop.is_set()
        fifth = rows[-max(1, len(rows) // 5) :]
        step = max(1, len(fifth) // self.config.run.reference_episodes)
        chosen = fifth[::-1][::step][: self.config.run.reference_episodes][::-1]
        seeds = [int(row["seed"]) for row in chosen]
        played: dict[str, list[dict[str, Any]]] = {}
        baselines: tuple[Player, ...] = ("random",) if self.config.gym.id else ("random", "never_grow")
        for player in baselines:
            if stop.is_set():
                return False
            played[player] = self.fleet.play(player, seeds)
        references = {
            "seeds": seeds,
            "tasks": [row["task_id"] for row in chosen],
            "learned": [row["return"] for row in chosen],
            **{name: [t["return"] for t in timelines] for name, timelines in played.items()},
        }
        (self.run_dir / "references.json").write_text(json.dumps(references))
        if not self.config.gym.id:
            self._draw_episode(chosen)
        return not stop.is_set()

    def _draw_episode(self, chosen: list[dict[str, Any]]) -> None:
        """The episode of the report: one of the task on which the policy grows most."""
        growth: dict[str, list[float]] = {}
        for row in chosen:
            growth.setdefault(row["task_id"], []).append(row["growth_ratio"])
        task = max(growth, key=lambda t: sum(growth[t]) / len(growth[t]))
        seed = next(int(row["seed"]) for row in reversed(chosen) if row["task_id"] == task)
        timeline = self.fleet.play("learned", [seed], True)[0]
        never = self.fleet.play("never_grow", [seed])[0]
        (self.run_dir / "timeline.json").write_text(json.dumps(timeline | {"never_grow_accuracy": never["accuracy"]}))
