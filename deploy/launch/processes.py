"""The learner and the actors as processes of their own, which meet through the server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import ray
from rich.console import Console

from actors.errors import UserError
from actors.heartbeat import StallTimer
from actors.metrics.prometheus import ProcessMetrics
from actors.transport.base import Fenced
from actors.transport.redis import connect, require_store
from actors.workers.worker_pool import WorkerPool
from deploy.config.schema import Config
from deploy.launch.cluster import cluster, told_on, with_passwords
from deploy.launch.live_learner import refuse_second_learner
from deploy.launch.local_ray import local_ray
from deploy.launch.machine import check_machine, require_free_port
from deploy.launch.monitor import RunMonitor
from deploy.launch.prepare import compile_environments, open_run, own_metrics, pretrain
from deploy.launch.process_settings import acting, checked_spaces, learner_settings, namespace
from deploy.launch.signals import stop_on_signal
from deploy.launch.stopping import has_ended, in_thread
from learner.service import LearnerService


def run_learner(config: Config, resume: Path | None = None) -> int:
    """The learner alone, in this process, without Ray. Returns 0, or 130 when it was interrupted. Raises `UserError`
    where the run has a learner, or gets another."""
    require_store(config.run.redis, config.queue, namespace(config))
    with closing(connect(config.run.redis, config.queue, namespace(config))) as transport:
        refuse_second_learner(transport, namespace(config))
    try:
        return _learn(config, resume)
    except Fenced as error:
        raise UserError(
            f"another learner took over run {namespace(config)!r} ({error}), and a run has one: stop one of them, or "
            "give it a --run.name of its own"
        ) from error


def _learn(config: Config, resume: Path | None) -> int:
    check_machine(config)
    run_dir = open_run(config, resume)
    console = Console(highlight=False)
    config = pretrain(config, run_dir, console)
    with stop_on_signal() as stop, own_metrics(config) as metrics, _watch(config, metrics):
        report = metrics.reporter("learner")
        service = LearnerService(learner_settings(config, run_dir, config.run.redis), lambda: report)
        service.start()
        console.print(f"learner: {run_dir}, waiting for episodes of run {namespace(config)!r}")
        still, beats = StallTimer(), -1
        while True:
            status = service.poll()
            if status.beats != beats:
                beats = status.beats
                still.progressed()
            still.poll()
            for note in status.new_notes:
                console.print(note, soft_wrap=True, markup=False)
            for m in status.new_metrics:
                console.print(
                    f"update {m['update']:.0f}: return {m['return_mean']:.2f}, lag {m['policy_lag_mean']:.1f}, "
                    f"{m['episodes_per_s']:.1f} episodes/s, waited {m['wait_s']:.1f} s"
                )
            if status.done or stop.wait(0.2):
                break
        if config.run.service and status.done:
            console.print("learner: the run is done; waiting to be stopped")
            stop.wait()
        stopping = in_thread(service.stop)
        slowest_s = min(still.longest_s, config.learner.hang_s / 2)
        if not has_ended(lambda s: bool(wait([stopping], s).done), lambda: service.poll().beats, slowest_s):
            console.print(
                f"learner: it was told to stop and did not; its newest checkpoint in {run_dir} is an earlier one"
            )
            return 130
        progress = stopping.result()
    console.print(f"learner: {progress.update} updates, {progress.episodes_trained} episodes; checkpoint in {run_dir}")
    return 130 if stop.is_set() and not status.done else 0


def run_actors(config: Config) -> int:
    """The actors alone, on a Ray of this machine or on the cluster at `run.address`, until they are told to stop."""
    checked_spaces(config)
    require_free_port(config.run.metrics_port, "run.metrics_port")
    connect(config.run.redis, config.queue, namespace(config)).close()
    console = Console(highlight=False)
    compile_environments(config, console)
    place: AbstractContextManager[str | None] = (
        cluster(config.run.address, tell=told_on(console)) if config.run.address else local_ray(config)
    )
    with stop_on_signal() as stop, own_metrics(config) as metrics, place as dashboard:
        if dashboard:
            console.print(dashboard, soft_wrap=True, markup=False)
        config = with_passwords(config) if config.run.address else config
        fleet = WorkerPool(acting(config), namespace(config), config.run.seed, config.run.redis, namespace(config))
        console.print(f"actors: {config.actors.count}, for run {namespace(config)!r}")
        while not stop.wait(0.2):
            fleet.autoscale(ray.available_resources)
            reports = fleet.pump(timeout_s=0.0)
            metrics.reporter("fleet")(fleet.counts())
            for report in reports:
                metrics.reporter(report.actor)(report.metrics)
                console.print(
                    f"wave: {report.episodes} episodes, {report.steps} steps in {report.seconds:.1f} s, "
                    f"waited {report.waited_s:.1f} s for the queue, {report.unsent} unsent"
                    + (f", the server was away for {report.away_s:.1f} s" if report.away_s else "")
                )
        fleet.stop()
    return 0


@contextmanager
def _watch(config: Config, metrics: ProcessMetrics) -> Iterator[None]:
    """How the run stands, where metrics are shown at all: no supervisor tells it here."""
    if not config.run.metrics_port:
        yield
        return
    watch = RunMonitor(lambda: connect(config.run.redis, config.queue, namespace(config)), metrics.reporter("watch"))
    try:
        yield
    finally:
        watch.close()
