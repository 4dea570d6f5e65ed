"""Run the learner and the actors as separate processes that exchange data through Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import ray
from rich.console import Console

from actors.errors import UserError
from actors.heartbeat import StallTimer
from actors.metrics.prometheus import ProcessMetrics
from actors.transport.base import Fenced
from actors.transport.redis import connect
from actors.workers.placement import node_gpus, require_gpus
from actors.workers.rollout_worker import WorkerSettings
from actors.workers.worker_pool import WorkerPool
from deploy.config.schema import Config
from deploy.launch.cluster import cluster
from deploy.launch.ownership import require_free_store
from deploy.launch.prepare import check_machine, compile_kernels, open_run, pretrain, require_free_port
from deploy.launch.process_settings import acting, checked_spaces, learner_settings, namespace, with_passwords
from deploy.launch.ray.local_ray import local_ray
from deploy.launch.signals import stop_on_signal
from deploy.launch.supervision.monitor import RunMonitor
from deploy.launch.supervision.stopping import wait_until_stopped
from deploy.report.numbers import number
from learner.service import LearnerService

PUMP_S = 0.2  # longest time between two looks at the actors


def run_learner(config: Config, resume: Path | None = None) -> int:
    """Run only the learner, in this process and without Ray. Returns 0, or 130 if it was interrupted.

    Raises `UserError` if the run has another learner, or if another one takes over.
    """
    require_free_store(config, namespace(config))
    try:
        return _learn(config, resume)
    except Fenced as error:
        raise UserError(
            f"another learner took over run {namespace(config)!r} ({error}), and a run has only one: stop one of them, "
            "or give it another --run.name"
        ) from error


def _learn(config: Config, resume: Path | None) -> int:
    check_machine(config)
    console = Console(highlight=False)
    with ExitStack() as stack:
        run_dir = open_run(config, resume, stack)
        compile_kernels(config, console, actors=False)
        config = pretrain(config, run_dir, console)
        stop = stack.enter_context(stop_on_signal())
        metrics = stack.enter_context(process_metrics(config))
        if config.run.metrics_port:  # without Ray there is no supervisor that reports the status of the run
            store = partial(connect, config.run.redis, config.queue, namespace(config))
            stack.callback(RunMonitor(store, metrics.reporter("watch")).close)
        report = metrics.reporter("learner")
        service = LearnerService(learner_settings(config, run_dir), lambda: report)
        service.start()
        console.print(f"learner: waiting for episodes of run {namespace(config)!r}, run folder {run_dir}")
        stall_timer = StallTimer()
        while True:
            status = service.poll()
            stall_timer.poll(status.beats)
            for note in status.new_notes:
                console.print(note, soft_wrap=True, markup=False)
            for m in status.new_metrics:
                console.print(update_line(m))
            if status.done or stop.wait(0.2):
                break
        if config.run.service and status.done:
            console.print("learner: the run is finished; serving metrics until stopped")
            stop.wait()
        longest_pause_s = min(stall_timer.longest_s, config.learner.hang_s / 2)
        if not wait_until_stopped(service.stopped, lambda: service.poll().beats, longest_pause_s):
            console.print(f"learner: did not stop in time; the newest checkpoint in {run_dir} is an earlier one")
            return 130
        progress = service.stop()
    console.print(f"learner: {progress.update} updates, {progress.episodes_trained} episodes; checkpoint in {run_dir}")
    return 130 if stop.is_set() and not status.done else 0


def update_line(m: Mapping[str, float]) -> str:
    """Describe an update in one line."""
    outcome = f"reward per step {number(m['reward_mean'])}, no episode ended"
    if "return_mean" in m:
        outcome = f"return {number(m['return_mean'])}"
    return (
        f"update {m['update']:.0f}: {outcome}, lag {m['policy_lag_mean']:.1f}, "
        f"{m['episodes_per_s']:.1f} episodes/s, waited {m['wait_s']:.1f} s"
    )


def run_actors(config: Config) -> int:
    """Run only the actors, on this machine or on the Ray cluster at `run.address`, until interrupted."""
    checked_spaces(config)
    connect(config.run.redis, config.queue, namespace(config)).close()
    if config.external.spaces:
        from deploy.launch.endpoint import serve_endpoint

        return serve_endpoint(config)
    require_free_port(config.run.metrics_port)
    console = Console(highlight=False)
    compile_kernels(config, console, learner=False)
    ray_context: AbstractContextManager[str | None] = (
        cluster(config.run.address) if config.run.address else local_ray(config)
    )
    with stop_on_signal() as stop, process_metrics(config) as metrics, ray_context as dashboard_note:
        if dashboard_note:
            console.print(dashboard_note, soft_wrap=True, markup=False)
        if config.run.address:
            config = with_passwords(config)
        else:
            require_gpus(config.actors, node_gpus(), learner=0.0)
        run = namespace(config)
        pool = WorkerPool(WorkerSettings(acting(config), 0, run, config.run.seed, config.run.redis, run))
        console.print(f"actors: {config.actors.count}, for run {run!r}")
        try:
            while not stop.is_set():
                pool.autoscale(ray.available_resources)
                reports = pool.pump(PUMP_S)
                metrics.reporter("fleet")(pool.counts())
                for report in reports:
                    metrics.reporter(report.actor)(report.metrics)
                    console.print(
                        f"{report.actor}: {report.episodes} episodes, {report.steps} steps in {report.seconds:.1f} s, "
                        f"waited {report.waited_s:.1f} s for the queue, {report.unsent} unsent"
                        + (f", Redis was unreachable for {report.away_s:.1f} s" if report.away_s else "")
                    )
        finally:
            pool.stop()
    return 0


@contextmanager
def process_metrics(config: Config) -> Iterator[ProcessMetrics]:
    """Metrics of a process outside Ray, served on `run.metrics_port` if it is set."""
    metrics = ProcessMetrics(namespace(config))
    with ExitStack() as stack:
        if config.run.metrics_port:
            stack.callback(metrics.serve(config.run.metrics_host, config.run.metrics_port))
        yield metrics
