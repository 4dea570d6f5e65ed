"""Start, follow and stop runs on a Ray cluster. A detached, named supervisor owns each run."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import psutil
import ray
from ray.exceptions import RayError
from rich.console import Console

from actors.errors import UserError
from actors.transport.backoff import Backoff
from actors.transport.redis import PASSWORD_VARIABLE, require_store
from actors.workers.faults.actor_reports import last_line
from deploy.config.resume import resumed_folder
from deploy.config.schema import Config
from deploy.launch.following import (
    ACTORS_PASSWORD_VARIABLE,
    follow,
    make_run_plan,
    print_outcome,
    with_password,
    write_run_report,
)
from deploy.launch.prepare import open_run, pretrain, with_run_name
from deploy.launch.process_settings import namespace
from deploy.launch.ray.runtime_env import runtime_env
from deploy.launch.signals import own_signals, stop_on_signal
from deploy.launch.supervision.remote_run import RemoteRun, is_running, run_on_cluster, start_supervisor
from deploy.launch.supervision.supervisor import FINISHED, RunPlan

RAY_NAMESPACE = "tamiyo"
CONNECT_S = 5.0
RETRY_S = 30.0  # how long connections that fail for a transient reason are retried


def train_on_cluster(config: Config, resume: Path | None, attach: bool) -> int:
    """Start a run on the cluster at `run.address`, or follow the run of that name if it is already running.

    The run does not depend on this process: an interrupt only stops following it. Returns 0, or 130 if the run was
    stopped or is no longer followed.
    """
    if not config.run.redis:
        raise UserError(
            "run.address needs run.redis, a Redis server that all machines of the cluster can reach, such as "
            "--redis redis://HOST:6379/0"
        )
    config, resume = _with_absolute_paths(config), resume and resume.absolute()
    console = Console(highlight=False)
    with stop_on_signal() as stop, cluster(config.run.address, runtime_env(config), line_printer(console)):
        name = config.run.name or (resumed_folder(resume).name if resume else "")
        if name and is_running(name):
            console.print(f"run {name!r} is already running: following it")
        elif attach:
            raise UserError(
                f"no run {name or '(give --run.name)'!r} is running at {config.run.address}: "
                "leave out --attach to start it"
            )
        else:
            plan = run_on_cluster(prepare)(with_passwords(config), resume)
            start_supervisor(plan)
            name = plan.name
        run = RemoteRun(name)
        status = follow(run, stop, console, name)
        if status.phase not in FINISHED:
            console.print(
                f"stopped following; run {name!r} continues. Follow it again with: tamiyo train --attach --run.name "
                f"{name} --address {config.run.address}. Stop it with: tamiyo stop {name} --address "
                f"{config.run.address}",
                soft_wrap=True,
            )
            return 130
        run.end()
        return print_outcome(status, console, run_on_cluster(write_run_report))


def stop_run(name: str, address: str) -> int:
    """Stop a run on the cluster after a last checkpoint. Returns 0, or 1 if that failed."""
    console = Console(highlight=False)
    with cluster(address, log=line_printer(console)):
        if not is_running(name):
            raise UserError(f"no run {name!r} is running at {address}")
        run = RemoteRun(name)
        run.stop()
        status = follow(run, threading.Event(), console, name, quiet=True)
        run.end()
        return 0 if print_outcome(status, console, run_on_cluster(write_run_report)) in (0, 130) else 1


def prepare(config: Config, resume: Path | None) -> RunPlan:
    """Create the run folder, check the Redis server and pretrain, on a machine of the cluster. Raises `UserError`."""
    run_dir = open_run(config, resume)
    config = with_run_name(config, run_dir)
    require_store(config.run.redis, config.queue, namespace(config))
    config = pretrain(config, run_dir, Console(highlight=False))
    return make_run_plan(config, run_dir, config.run.redis)


def line_printer(console: Console) -> Callable[[str], None]:
    """Return a function that prints lines verbatim, without interpreting Rich markup."""
    return partial(console.print, markup=False, soft_wrap=True)


@contextmanager
def cluster(
    address: str,
    environment: Mapping[str, Any] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[None]:
    """Connect to an existing Ray cluster while the context is open, as a driver or with ray:// as a client.

    `environment` is Ray's `runtime_env`. Connections that fail for a transient reason are retried, which is reported
    once through `log`. Raises `UserError` if no cluster answers.
    """
    try:
        _connect(address, environment, log)
    except (OSError, RuntimeError, ValueError, psutil.Error, grpc.RpcError, RayError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({last_line(error)}): give auto, "
            "HOST:6379 or ray://HOST:10001, and set RAY_AUTH_TOKEN if the cluster uses token authentication"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str, environment: Mapping[str, Any] | None, log: Callable[[str], None]) -> None:
    """Connect to Ray. Retry transient failures with exponential backoff until `RETRY_S` after the first one."""
    target = urlsplit(address if "//" in address else f"//{address}")
    backoff, deadline_s = Backoff(0.5, 5.0), None
    while True:
        if target.hostname and target.port:  # fail fast: Ray itself would retry for minutes
            socket.create_connection((target.hostname, target.port), timeout=CONNECT_S).close()
        try:
            with own_signals():
                ray.init(
                    address=address,
                    namespace=RAY_NAMESPACE,
                    runtime_env=dict(environment) if environment else None,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
            return
        except (OSError, psutil.Error, grpc.RpcError) as error:
            ray.shutdown()
            now = time.monotonic()
            deadline_s = deadline_s or now + RETRY_S
            if not is_transient(error) or now > deadline_s:
                raise
            if not backoff.failures:
                log(f"connecting to the Ray cluster at {address} failed ({last_line(error)}); retrying")
            time.sleep(backoff.fail())


def is_transient(error: BaseException) -> bool:
    """Whether another attempt to connect may succeed.

    Ray's client server may fail while it starts on a busy machine, and a process may end while Ray scans all processes
    for an address.
    """
    if isinstance(error, grpc.RpcError):
        code = getattr(error, "code", None)
        return callable(code) and code() is grpc.StatusCode.UNAVAILABLE
    if type(error) is ConnectionError:  # Ray raises others only after retrying for half a minute
        return "already been disconnected" in str(error)
    return isinstance(error, psutil.Error | ConnectionAbortedError | ConnectionResetError)


def _with_absolute_paths(config: Config) -> Config:
    """Make paths absolute: machines of the cluster have another working directory."""
    root, init_from = Path(config.run.root), config.run.init_from
    init_from = str(Path(init_from).absolute()) if init_from else ""
    return replace(config, run=replace(config.run, root=str(root.absolute()), init_from=init_from))


def with_passwords(config: Config) -> Config:
    """Insert passwords from environment variables into the URLs, for machines without these variables.

    The result must not be printed or written to the run folder.
    """
    redis = with_password(config.run.redis, PASSWORD_VARIABLE)
    actors = with_password(config.run.actors_redis, ACTORS_PASSWORD_VARIABLE)
    return replace(config, run=replace(config.run, redis=redis, actors_redis=actors))
