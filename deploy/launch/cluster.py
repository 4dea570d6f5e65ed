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
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
import psutil
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from rich.console import Console

from actors.errors import UserError
from actors.own_module import add_working_directory
from actors.process_environment import process_environment
from actors.transport.redis import require_store
from actors.workers.faults.actor_reports import last_line
from deploy.config.flags import resumed_folder
from deploy.config.schema import Config
from deploy.launch.following import follow, print_outcome, write_run_report
from deploy.launch.prepare import open_run, pretrain, with_run_name
from deploy.launch.process_settings import namespace, with_passwords
from deploy.launch.signals import own_signals, stop_on_signal
from deploy.launch.supervision.supervisor import FINISHED, RunStatus, Supervisor

R = TypeVar("R")
OURS = ("actors", "learner", "deploy", "tamiyo")
RAY_NAMESPACE = "tamiyo"
CONNECT_S = 5.0
RETRY_S, RETRY_EVERY_S = 60.0, 2.0  # Ray waits 30 s for a client server that has failed
TRANSIENT = (psutil.Error, grpc.RpcError, ConnectionAbortedError, ConnectionResetError)
"""Errors of `ray.init` after which another attempt may succeed: Ray's client server may fail while it starts on a busy
machine, and a process may end while Ray scans all processes for an address."""
RESTART_TIMEOUT_S = 120.0  # how long to wait for Ray to restart a supervisor
HEAD_NODE = {"node:__internal_head__": 0.001}
"""Ray's resource that only the head node has. A supervisor there is lost only if the whole cluster is lost."""


def train_on_cluster(config: Config, resume: Path | None) -> int:
    """Start a run on the cluster at `run.address`, or follow the run of that name if it is already running.

    The run does not depend on this process: an interrupt only stops following it. Returns 0, or 130 if the run was
    stopped or is no longer followed.
    """
    config, resume = _with_absolute_paths(config), resume and resume.absolute()
    console, address = Console(highlight=False), config.run.address
    with stop_on_signal() as stop, cluster(address, runtime_env(config)):
        name = config.run.name or (resumed_folder(resume).name if resume else "")
        if name and _is_running(name):
            console.print(f"run {name!r} is already running: following it")
        elif not config.run.redis:
            raise UserError(
                f"no run {name or '(give --run.name)'!r} is running at {address}, and a new one needs a Redis server "
                "that all machines of the cluster can reach: add --redis redis://HOST:6379/0"
            )
        else:
            prepared, run_dir = on_cluster(prepare, with_passwords(config), resume)
            name = run_dir.name
            _start_supervisor(name, prepared, run_dir)
        run = RemoteRun(name)
        status = follow(run.poll, stop, console, name)
        if status.phase not in FINISHED:
            console.print(
                f"stopped following; run {name!r} continues. Follow it again with: tamiyo train --run.name {name} "
                f"--address {address}. Stop it with: tamiyo stop {name} --address {address}",
                soft_wrap=True,
            )
            return 130
        run.end()
        return print_outcome(status, console, partial(on_cluster, write_run_report))


def stop_run(name: str, address: str) -> int:
    """Stop a run on the cluster after a last checkpoint. Returns 0, or 1 if that failed."""
    console = Console(highlight=False)
    with cluster(address):
        if not _is_running(name):
            raise UserError(f"no run {name!r} is running at {address}")
        run = RemoteRun(name)
        run.stop()
        status = follow(run.poll, threading.Event(), console, name, quiet=True)
        run.end()
        return 0 if print_outcome(status, console, partial(on_cluster, write_run_report)) in (0, 130) else 1


def prepare(config: Config, resume: Path | None) -> tuple[Config, Path]:
    """Create the run folder, check the Redis server and pretrain, on a machine of the cluster. Returns the named run's
    settings and its folder. Raises `UserError`."""
    run_dir = open_run(config, resume)
    config = with_run_name(config, run_dir)
    require_store(config.run.redis, config.queue, namespace(config))
    return pretrain(config, run_dir, Console(highlight=False)), run_dir


def runtime_env(config: Config) -> dict[str, Any]:
    """Return Ray's `runtime_env`, the code that a run uploads to the cluster; empty for `run.ship: image`. Raises
    `UserError` if a user module is not found."""
    if config.run.ship == "image":
        return {}
    named = (*config.env.tasks, config.gym.id, *config.gym.wrappers)  # of the user's, where they have a colon
    theirs = {name.partition(":")[0].partition(".")[0] for name in named if ":" in name}
    modules = [_module_path(name) for name in (*OURS, *sorted(theirs - set(OURS)))]
    return {"py_modules": modules, "excludes": ["__pycache__"]}


def _module_path(module: str) -> str:
    add_working_directory()
    spec = find_spec(module)
    if spec is None or not (spec.submodule_search_locations or spec.origin):
        raise UserError(f"run.ship needs module {module!r}, but it was not found: install it, or run from its folder")
    return str(next(iter(spec.submodule_search_locations)) if spec.submodule_search_locations else spec.origin)


@contextmanager
def cluster(address: str, environment: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Connect to an existing Ray cluster while the context is open, as a driver or with ray:// as a client.

    `environment` is Ray's `runtime_env`. Raises `UserError` if no cluster answers, after `RETRY_S` if the reason may
    pass.
    """
    target = urlsplit(address if "//" in address else f"//{address}")
    deadline_s = time.monotonic() + RETRY_S
    while True:
        try:
            if target.hostname and target.port:  # fail fast: Ray itself would retry for minutes
                socket.create_connection((target.hostname, target.port), timeout=CONNECT_S).close()
            with own_signals():
                ray.init(
                    address=address,
                    namespace=RAY_NAMESPACE,
                    runtime_env=dict(environment) if environment else None,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
            break
        except (OSError, RuntimeError, ValueError, psutil.Error, grpc.RpcError, RayError) as error:
            if isinstance(error, TRANSIENT) and time.monotonic() <= deadline_s:
                ray.shutdown()
                time.sleep(RETRY_EVERY_S)
                continue
            raise UserError(
                f"no Ray cluster answers at {address} ({last_line(error)}): give auto, "
                "HOST:6379 or ray://HOST:10001, and set RAY_AUTH_TOKEN if the cluster uses token authentication"
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _with_absolute_paths(config: Config) -> Config:
    """Make paths absolute: machines of the cluster have another working directory."""
    root, init_from = Path(config.run.root), config.run.init_from
    init_from = str(Path(init_from).absolute()) if init_from else ""
    return replace(config, run=replace(config.run, root=str(root.absolute()), init_from=init_from))


class RemoteRun:
    """The supervisor of a run as a Ray actor. Calls wait while Ray restarts it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._handle: Any = ray.get_actor(_actor_name(name))

    def poll(self, notes_seen: int = 0) -> RunStatus:
        """Return the status of the run, with the notes after the first `notes_seen`."""
        status: RunStatus = self._call(lambda: self._handle.poll.remote(notes_seen))
        return status

    def stop(self) -> None:
        """Ask the run to write a checkpoint and stop."""
        self._call(lambda: self._handle.stop.remote())

    def end(self) -> None:
        """Release the resources of the run and end the supervisor."""
        self._call(lambda: self._handle.close.remote())
        ray.kill(self._handle)

    def _call(self, call: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        while True:
            try:
                return ray.get(call())
            except RayTaskError as error:
                raise _user_error(error, f"the supervisor of run {self.name!r} failed") from error
            except RayActorError as error:
                if not isinstance(error, ActorUnavailableError) or time.monotonic() > deadline:
                    raise UserError(
                        f"the supervisor of run {self.name!r} is lost ({last_line(error)}): run the same command with "
                        "--resume to continue the run"
                    ) from error
                time.sleep(0.5)


def _start_supervisor(name: str, config: Config, run_dir: Path) -> None:
    """Start a detached supervisor and wait until it answers. Raises `UserError` if it fails."""
    remote: Any = ray.remote(
        num_cpus=0,
        resources=HEAD_NODE,
        max_restarts=-1,
        max_task_retries=0,
        runtime_env={"env_vars": process_environment(False)},
    )(Supervisor)
    options = {"name": _actor_name(name), "lifetime": "detached", "max_concurrency": 4}
    handle = remote.options(**options).remote(config, run_dir)
    try:
        ray.get(handle.poll.remote())
    except RayError as error:
        raise _user_error(error, "the run's supervisor cannot be started") from error


def _is_running(name: str) -> bool:
    try:
        ray.get_actor(_actor_name(name))
    except ValueError:
        return False
    return True


def on_cluster(call: Callable[..., R], *args: Any) -> R:
    """Call a function on a machine of the cluster, which has access to the run folder and to Redis. A `UserError` of
    the function is raised here again."""
    remote: Any = ray.remote(num_cpus=0, runtime_env={"env_vars": process_environment(False)})(call)
    try:
        answer: R = ray.get(remote.remote(*args))
    except RayError as error:
        raise _user_error(error, "a task on the cluster failed") from error
    return answer


def _user_error(error: RayError, what: str) -> UserError:
    cause = error.cause if isinstance(error, RayTaskError) else None
    return UserError(str(cause) if isinstance(cause, UserError) else f"{what}: {last_line(error)}")


def _actor_name(name: str) -> str:
    return f"supervisor of {name}"
