"""Train on one machine: an embedded Redis server, Ray, and a supervisor in this process."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path

import ray
from rich.console import Console

from actors.errors import UserError
from actors.transport.redis import connect, require_store
from actors.workers.placement import learner_gpus, node_gpus, require_gpus
from deploy.config.resume import resumed_folder
from deploy.config.schema import Config
from deploy.launch.embedded_redis import DUMP, EmbeddedRedis
from deploy.launch.following import follow, make_run_plan, print_outcome
from deploy.launch.live_learner import refuse_second_learner
from deploy.launch.machine import check_machine
from deploy.launch.prepare import prepare_here
from deploy.launch.process_settings import namespace
from deploy.launch.ray.local_ray import local_ray
from deploy.launch.signals import stop_on_signal
from deploy.launch.supervision.supervisor import FINISHED, Supervisor


def train(config: Config, resume: Path | None = None, attach: bool = False) -> int:
    """Run a training on this machine, or on the Ray cluster at `run.address`.

    `resume` is a run folder or one of its checkpoints; `attach` only follows a running run on the cluster. Returns 0,
    or 130 if the run was interrupted (it can be resumed).
    """
    if ray.is_initialized():
        raise UserError("this program uses Ray already: call ray.shutdown() first, or train in a process of its own")
    if config.run.address:
        from deploy.launch.cluster import train_on_cluster

        return train_on_cluster(config, resume, attach)
    if attach:
        raise UserError("--attach needs --address: a run on one machine ends with the command that started it")
    check_machine(config)
    if config.run.redis:
        name = config.run.name or (resumed_folder(resume).name if resume else namespace(config))
        require_store(config.run.redis, config.queue, name)  # fail early if the server is unreachable
        with closing(connect(config.run.redis, config.queue, name)) as transport:
            refuse_second_learner(transport, name)
    console = Console(highlight=False)
    with ExitStack() as stack:
        config, run_dir = prepare_here(config, resume, stack, console)
        stop = stack.enter_context(stop_on_signal())
        server: EmbeddedRedis | None = None
        if config.run.redis:
            redis = config.run.redis
        else:
            server = stack.enter_context(EmbeddedRedis(config.run.append_only, run_dir / DUMP))
            redis = server.url
        dashboard_note = stack.enter_context(local_ray(config, config.run.metrics_port))
        if dashboard_note:
            console.print(dashboard_note, soft_wrap=True, markup=False)
        if not config.external.spaces:
            nodes = node_gpus()
            require_gpus(config.actors, nodes, learner_gpus(config.learner.device, config.actors, nodes, grows=False))
        supervisor = Supervisor(make_run_plan(config, run_dir, redis))
        stack.push(lambda kind, error, trace: supervisor.close(at_once=kind is KeyboardInterrupt))

        def restart_server() -> list[str]:
            return (
                ["the embedded Redis server died and was restarted"]
                if server is not None and server.restart_if_dead()
                else []
            )

        status = follow(supervisor, stop, console, run_dir.name, restart_server)
        if stop.is_set() and status.phase not in FINISHED:
            supervisor.stop()
            status = follow(supervisor, threading.Event(), console, run_dir.name, restart_server, quiet=True)
    return print_outcome(status, console)
