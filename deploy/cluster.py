"""Runs on a Ray cluster: a detached, named supervisor that drivers follow, leave and stop."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from rich.console import Console

from actors.errors import UserError
from actors.fleet import last_line
from actors.transport.redis import PASSWORD_VARIABLE, WEIGHTS_PASSWORD_VARIABLE, connect
from actors.transport.server import password_from
from actors.worker import limit_threads
from deploy.config import Config
from deploy.following import conclude, follow, named, plan
from deploy.launch import namespace, open_run, own_signals, stop_on_signal
from deploy.supervisor import OVER, RunStatus, Supervisor

RAY_NAMESPACE = "tamiyo"
CONNECT_S = 5.0
BACK_S = 120.0  # how long a supervisor may take to be started again elsewhere


class RemoteRun:
    """A supervisor in a Ray actor: calls wait while Ray starts it again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._handle: Any = ray.get_actor(_actor_name(name))

    def poll(self, notes_seen: int = 0) -> RunStatus:
        status: RunStatus = self._ask(lambda: self._handle.poll.remote(notes_seen))
        return status

    def stop(self) -> None:
        self._ask(lambda: self._handle.stop.remote())

    def end(self) -> None:
        """Free what it holds on the cluster, and itself."""
        self._ask(lambda: self._handle.close.remote())
        ray.kill(self._handle)

    def _ask(self, call: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + BACK_S
        while True:
            try:
                return ray.get(call())
            except RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise UserError(str(error.cause)) from error
                raise UserError(f"the supervisor of run {self.name!r} failed: {last_line(error)}") from error
            except RayActorError as error:
                if not isinstance(error, ActorUnavailableError) or time.monotonic() > deadline:
                    raise UserError(
                        f"the supervisor of run {self.name!r} is gone ({last_line(error)}): "
                        "the same command with --resume starts another"
                    ) from error
                time.sleep(0.5)


def train_on_cluster(config: Config, resume: Path | None, attach: bool) -> int:
    """Start a run on the cluster at `run.address`, or follow the one of that name that is under way there. The run
    needs no driver: an interrupt only ends the following. Returns 0, or 130 when the run was stopped or left."""
    if not config.run.redis:
        raise UserError(
            "run.address needs run.redis: the machines of a cluster meet through a server that all of them reach, "
            "such as --redis redis://HOST:6379/0"
        )
    console = Console(highlight=False)
    with stop_on_signal() as stop, cluster(config.run.address):
        name = config.run.name or (resume.resolve().name if resume else "")
        if name and is_under_way(name):
            console.print(f"run {name!r} is under way: following it")
        elif attach:
            raise UserError(
                f"no run {name or '(give --run.name)'!r} is under way at {config.run.address}: leave --attach out to "
                "start it"
            )
        else:
            name = _start(config, resume)
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
    return conclude(status, console)


def stop_run(name: str, address: str) -> int:
    """Let a run on the cluster write its checkpoint and end."""
    console = Console(highlight=False)
    with cluster(address):
        if not is_under_way(name):
            raise UserError(f"no run {name!r} is under way at {address}")
        run = RemoteRun(name)
        run.stop()
        status = follow(run, threading.Event(), console, name, quiet=True)
        run.end()
    return 0 if conclude(status, console) in (0, 130) else 1


def is_under_way(name: str) -> bool:
    try:
        ray.get_actor(_actor_name(name))
    except ValueError:
        return False
    return True


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Connected to a Ray cluster that others run. Raises `UserError` where none answers."""
    place = urlsplit(address if "//" in address else f"//{address}")
    try:
        if place.hostname and place.port:  # else Ray tries for minutes
            socket.create_connection((place.hostname, place.port), timeout=CONNECT_S).close()
        with own_signals():
            ray.init(address=address, namespace=RAY_NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise UserError(
            f"no Ray cluster answers at {address} ({reason[0] if reason else type(error).__name__}): give auto, "
            "HOST:6379 or ray://HOST:10001, and in RAY_AUTH_TOKEN the token of a cluster that asks for one"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _start(config: Config, resume: Path | None) -> str:
    run_dir = open_run(config, resume)
    config = named(config, run_dir)
    connect(config.run.redis, config.queue, namespace(config)).close()
    remote: Any = ray.remote(
        num_cpus=0, max_restarts=-1, max_task_retries=0, runtime_env={"env_vars": limit_threads()}
    )(Supervisor)
    name = run_dir.name
    options = {"name": _actor_name(name), "lifetime": "detached", "max_concurrency": 4}
    known = with_passwords(config)
    handle = remote.options(**options).remote(plan(known, run_dir, known.run.redis))
    try:
        ray.get(handle.poll.remote())
    except RayActorError as error:
        raise UserError(f"the run's supervisor cannot be started: {last_line(error)}") from error
    return name


def with_passwords(config: Config) -> Config:
    """The urls as machines without our environment need them; what is handed over is shown nowhere."""
    weights = _with_password(config.queue.weights_redis, WEIGHTS_PASSWORD_VARIABLE)
    redis = _with_password(config.run.redis, PASSWORD_VARIABLE)
    return replace(config, queue=replace(config.queue, weights_redis=weights), run=replace(config.run, redis=redis))


def _with_password(url: str, variable: str) -> str:
    parts, password = urlsplit(url), password_from(variable)
    if not url or parts.password or not password:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}").geturl()


def _actor_name(name: str) -> str:
    return f"supervisor of {name}"
