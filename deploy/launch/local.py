"""Train on one machine: an embedded Redis server, Ray, and a supervisor in this process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import ray
from rich.console import Console

from actors.errors import UserError
from actors.workers.placement import learner_gpus, node_gpus, require_gpus
from deploy.config.flags import resumed_folder
from deploy.config.schema import Config
from deploy.launch.embedded_redis import DUMP, EmbeddedRedis
from deploy.launch.following import follow, print_outcome
from deploy.launch.ownership import require_free_store
from deploy.launch.prepare import check_machine, prepare_here
from deploy.launch.process_settings import namespace
from deploy.launch.ray.local_ray import local_ray
from deploy.launch.signals import stop_on_signal
from deploy.launch.supervision.supervisor import FINISHED, Supervisor


def train(config: Config, resume: Path | None = None) -> int:
    """Run a training on this machine, or on the Ray cluster at `run.address`.

    `resume` is a run folder or one of its checkpoints. Returns 0, or 130 if it was interrupted (it can be resumed).
    """
    if ray.is_initialized():
        raise UserError("this program uses Ray already: call ray.shutdown() first, or train in a process of its own")
    if config.run.address:
        from deploy.launch.cluster import train_on_cluster

        return train_on_cluster(config, resume)
    check_machine(config)
    if config.run.redis:
        require_free_store(config, config.run.name or (resumed_folder(resume).name if resume else namespace(config)))
    console = Console(highlight=False)
    with ExitStack() as stack:
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

        def restart_server() -> list[str]:
            died = server is not None and server.restart_if_dead()
            return ["the embedded Redis server died and was restarted"] if died else []

        status = follow(supervisor, stop, console, run_dir.name, restart_server)
        if stop.is_set() and status.phase not in FINISHED:
            supervisor.stop()
            status = follow(supervisor, threading.Event(), console, run_dir.name, restart_server, quiet=True)
    return print_outcome(status, console)
