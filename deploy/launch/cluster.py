"""Runs on a Ray cluster: a detached, named supervisor that drivers follow, leave and stop."""

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
from actors.transport.redis import PASSWORD_VARIABLE, WEIGHTS_PASSWORD_VARIABLE, require_store
from actors.workers.worker_pool import last_line
from deploy.config.resume import resumed_folder
from deploy.config.schema import Config
from deploy.launch.following import (
    ACTORS_PASSWORD_VARIABLE,
    conclude,
    follow,
    named,
    plan,
    with_password,
    write_and_tell,
)
from deploy.launch.prepare import open_run, pretrain
from deploy.launch.process_settings import namespace
from deploy.launch.remote_run import RemoteRun, is_under_way, start_supervisor, there
from deploy.launch.runtime_env import runtime_env
from deploy.launch.signals import own_signals, stop_on_signal
from deploy.launch.supervisor import OVER, RunPlan

RAY_NAMESPACE = "tamiyo"
CONNECT_S = 5.0
REPEAT_S = 30.0  # for which connections are repeated that fail for a passing reason


def train_on_cluster(config: Config, resume: Path | None, attach: bool) -> int:
    """Start a run on the cluster at `run.address`, or follow the one of that name that is under way there. The run
    needs no driver: an interrupt only ends the following. Returns 0, or 130 when the run was stopped or left."""
    if not config.run.redis:
        raise UserError(
            "run.address needs run.redis: the machines of a cluster meet through a server that all of them reach, "
            "such as --redis redis://HOST:6379/0"
        )
    config, resume = _with_places(config), resume and resume.absolute()
    console = Console(highlight=False)
    with stop_on_signal() as stop, cluster(config.run.address, runtime_env(config), told_on(console)):
        name = config.run.name or (resumed_folder(resume).name if resume else "")
        if name and is_under_way(name):
            console.print(f"run {name!r} is under way: following it")
        elif attach:
            raise UserError(
                f"no run {name or '(give --run.name)'!r} is under way at {config.run.address}: leave --attach out to "
                "start it"
            )
        else:
            plan_made = there(prepare)(with_passwords(config), resume)
            start_supervisor(plan_made)
            name = plan_made.name
        run = RemoteRun(name)
        status = follow(run, stop, console, name)
        if status.phase not in OVER:
            console.print(
                f"no longer followed; run {name!r} goes on. Follow it again with: tamiyo train --attach --run.name "
                f"{name} --address {config.run.address}. End it with: tamiyo stop {name} --address "
                f"{config.run.address}",
                soft_wrap=True,
            )
            return 130
        run.end()
        return conclude(status, console, there(write_and_tell))


def stop_run(name: str, address: str) -> int:
    """Let a run on the cluster write its checkpoint and end."""
    console = Console(highlight=False)
    with cluster(address, tell=told_on(console)):
        if not is_under_way(name):
            raise UserError(f"no run {name!r} is under way at {address}")
        run = RemoteRun(name)
        run.stop()
        status = follow(run, threading.Event(), console, name, quiet=True)
        run.end()
        return 0 if conclude(status, console, there(write_and_tell)) in (0, 130) else 1


def prepare(config: Config, resume: Path | None) -> RunPlan:
    """On a machine of the cluster: the run's folder made and its server greeted. Raises `UserError` where that cannot
    be."""
    run_dir = open_run(config, resume)
    config = named(config, run_dir)
    require_store(config.run.redis, config.queue, namespace(config))
    config = pretrain(config, run_dir, Console(highlight=False))
    return plan(config, run_dir, config.run.redis)


def told_on(console: Console) -> Callable[[str], None]:
    """Prints lines as they are: they may hold what looks like markup."""
    return partial(console.print, markup=False, soft_wrap=True)


@contextmanager
def cluster(
    address: str,
    environment: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[None]:
    """Connected to a Ray cluster that others run, as a driver or, with ray://, as a client of one; `environment` is
    Ray's `runtime_env`. A connection that fails for a passing reason is repeated, which `tell` hears about once.
    Raises `UserError` where no cluster answers."""
    try:
        _connect(address, environment, tell)
    except (OSError, RuntimeError, ValueError, psutil.Error, grpc.RpcError, RayError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({last_line(error)}): give auto, "
            "HOST:6379 or ray://HOST:10001, and in RAY_AUTH_TOKEN the token of a cluster that asks for one"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str, environment: Mapping[str, Any] | None, tell: Callable[[str], None]) -> None:
    """Repeats attempts that fail for a passing reason, with growing waits, until `REPEAT_S` after the first of them."""
    place = urlsplit(address if "//" in address else f"//{address}")
    backoff, until_s = Backoff(0.5, 5.0), None
    while True:
        if place.hostname and place.port:  # else Ray tries for minutes
            socket.create_connection((place.hostname, place.port), timeout=CONNECT_S).close()
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
            until_s = until_s or now + REPEAT_S
            if not is_passing(error) or now > until_s:
                raise
            if not backoff.failures:
                tell(f"the Ray cluster at {address} did not take the connection ({last_line(error)}); trying again")
            time.sleep(backoff.fail())


def is_passing(error: BaseException) -> bool:
    """Whether a connection failed in a way that the next attempt may not: the cluster's client server gave up while it
    was starting, as on a busy machine, or a process ended while Ray looked through all of them for an address."""
    if isinstance(error, grpc.RpcError):
        code = getattr(error, "code", None)
        return callable(code) and code() is grpc.StatusCode.UNAVAILABLE
    if type(error) is ConnectionError:  # Ray's own; others of its messages follow upon half a minute of trying
        return "already been disconnected" in str(error)
    return isinstance(error, psutil.Error | ConnectionAbortedError | ConnectionResetError)


def _with_places(config: Config) -> Config:
    """With folders as the cluster's machines need them, whose working directory is not ours."""
    root, init_from = Path(config.run.root), config.run.init_from
    init_from = str(Path(init_from).absolute()) if init_from else ""
    return replace(config, run=replace(config.run, root=str(root.absolute()), init_from=init_from))


def with_passwords(config: Config) -> Config:
    """The urls as machines without our environment need them; what is handed over is shown nowhere."""
    weights = with_password(config.queue.weights_redis, WEIGHTS_PASSWORD_VARIABLE)
    redis = with_password(config.run.redis, PASSWORD_VARIABLE)
    actors = with_password(config.run.actors_redis, ACTORS_PASSWORD_VARIABLE)
    run = replace(config.run, redis=redis, actors_redis=actors)
    return replace(config, queue=replace(config.queue, weights_redis=weights), run=run)
