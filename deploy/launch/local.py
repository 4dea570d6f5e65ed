"""Train on one machine: an embedded Redis server, Ray, and a supervisor in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from actors.errors import UserError
from actors.workers.placement import learner_gpus, node_gpus, require_gpus
from deploy.config.flags import resumed_folder
from deploy.config.schema import PRESETS, Config, default_preset
from deploy.config.yaml import overlay
from deploy.launch.embedded_redis import DUMP, EmbeddedRedis
from deploy.launch.following import follow, print_outcome, write_run_report
from deploy.launch.ownership import require_free_store
from deploy.launch.prepare import check_machine, prepare_here
from deploy.launch.process_settings import namespace
from deploy.launch.ray.local_ray import local_ray
from deploy.launch.signals import stop_on_signal
from deploy.launch.supervision.supervisor import FINISHED, Phase, Supervisor

OnUpdate = Callable[[dict[str, float]], bool | None]


def train(
    settings: Config | Mapping[str, Any], resume: str | Path | None = None, on_update: OnUpdate | None = None
) -> int:
    """Run a training on this machine, or on the Ray cluster at `run.address`.

        tamiyo.train({"gym": {"id": "CartPole-v1"}, "learner": {"total_steps": 100_000}, "run": {"name": "cart"}})

    Args:
        settings: What differs from the preset of the environment, by section and name, as in a settings file; or all
            settings.
        resume: Run folder to continue, or one of its checkpoints.
        on_update: Called in this thread with the metrics of each update, by the names of docs/reference/metrics.md. If
            it returns true, the run is stopped, and can be resumed. Not on a cluster.

    Returns 0, or 130 if the run was stopped. Raises `UserError`.
    """
    config = settings if isinstance(settings, Config) else overlay(PRESETS[default_preset(settings)], settings)
    resume = Path(resume) if resume is not None else None
    if ray.is_initialized():
        raise UserError("this program uses Ray already: call ray.shutdown() first, or train in a process of its own")
    if config.run.address:
        if on_update is not None:
            raise UserError("on_update is called on this machine, not on a cluster: leave it or run.address out")
        from deploy.launch.cluster import train_on_cluster

        return train_on_cluster(config, resume)
    check_machine(config)
    if config.run.redis:
        require_free_store(config, config.run.name or (resumed_folder(resume).name if resume else namespace(config)))
    console = Console(highlight=False)
    with ThreadPoolExecutor(1) as reporting, ExitStack() as stack:
        config, run_dir = prepare_here(config, resume, stack, console)
        stop = stack.enter_context(stop_on_signal())
        server: EmbeddedRedis | None = None
        if not config.run.redis:
            server = stack.enter_context(EmbeddedRedis(config.run.append_only, run_dir / DUMP))
            config = replace(config, run=replace(config.run, redis=server.url))
        dashboard_note = stack.enter_context(local_ray(config, config.run.metrics_port))
        if dashboard_note:
            console.print(dashboard_note, soft_wrap=True, markup=False)
        if not config.external.spaces:
            nodes = node_gpus()
            require_gpus(config.actors, nodes, learner_gpus(config.learner.device, config.actors, nodes, grows=False))
        supervisor = Supervisor(config, run_dir)
        stack.push(lambda kind, error, trace: supervisor.close(at_once=kind is KeyboardInterrupt))

        reporting.submit(_load_report, supervisor)

        def tend() -> list[str]:
            """Call `on_update`, and restart the server if it is dead. Returns lines for the user."""
            for metrics in supervisor.take_updates():
                if on_update is not None and on_update(metrics):
                    stop.set()
            died = server is not None and server.restart_if_dead()
            return ["the embedded Redis server died and was restarted"] if died else []

        status = follow(supervisor.poll, stop, console, run_dir.name, tend)
        if stop.is_set() and status.phase not in FINISHED:
            supervisor.stop()
            never, seen = threading.Event(), status.notes_total
            status = follow(supervisor.poll, never, console, run_dir.name, tend, seen, quiet=True)
        # What the report shows is written: it is drawn while actors, Ray and the server end.
        report = reporting.submit(write_run_report, run_dir) if status.phase is Phase.DONE else None
    return print_outcome(status, console, write_run_report if report is None else lambda _: report.result())


def _load_report(supervisor: Supervisor) -> None:
    """Import what draws the report when the training has ended, while the policies are compared."""
    supervisor.trained.wait()
    import_module("deploy.report.page")
