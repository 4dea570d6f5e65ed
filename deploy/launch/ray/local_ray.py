"""A private Ray instance on this machine."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray._common.utils import get_default_ray_temp_dir
from ray._private import parameter, ray_constants, services, utils, worker

from deploy.config.schema import Config
from deploy.launch.prepare import cores
from deploy.launch.ray import start_agent, start_worker
from deploy.launch.ray.fork_server import fork_server
from deploy.launch.signals import own_signals

_python_command = services._build_python_executable_command_memory_profileable  # of Ray, before it is replaced
FOLDER_LIMIT = 39  # its sockets have names of up to 64 characters below it, and sun_path holds 103 on macOS


@contextmanager
def local_ray(config: Config, metrics_port: int = 0) -> Iterator[str]:
    """Run Ray on loopback with token authentication while the context is open.

    Yields a line with the address of its dashboard, or an empty string without dashboard.
    """
    hint = "(token: the value of RAY_AUTH_TOKEN)"
    if "RAY_AUTH_TOKEN" not in os.environ:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        hint = f"(token: {os.environ['RAY_AUTH_TOKEN']})"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_events_max_num_task_in_gcs", "1000")  # of the ended calls
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would starve the run beside anything else
    for name in ("enable_worker_prestart", "prestart_worker_first_driver"):
        os.environ.setdefault(f"RAY_{name}", "0")  # useless: each of our actors has its own environment
    # With clusters disabled, Ray binds all its ports to loopback. Setting the node address alone does not do that.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray reads the variable only at import
    count = config.actors.count
    with fork_server(config):
        with own_signals(), _changed_ray(config.run.dashboard, config.run.dashboard or metrics_port > 0):
            context = ray.init(
                address="local",
                # One CPU slot per actor and one for the learner, however few cores the machine has.
                num_cpus=count + 1 if isinstance(count, int) else max(2, cores()),
                include_dashboard=config.run.dashboard,
                # The executable is inserted into a shell command.
                runtime_env={"py_executable": shlex.quote(sys.executable)} | _own_packages_first(),
                logging_level=logging.ERROR,
                log_to_driver=False,
                _temp_dir=None if len(os.fsencode(get_default_ray_temp_dir())) <= FOLDER_LIMIT else "/tmp/ray",
                _metrics_export_port=metrics_port or None,
                _node_ip_address="127.0.0.1",
            )
        try:
            yield f"Ray's dashboard is at http://{context.dashboard_url} {hint}" if config.run.dashboard else ""
        finally:
            gc.collect()  # a handle of an actor that is freed after Ray has ended aborts the process
            ray.shutdown()


def _command_without_agent(component: str, session_dir: str, unbuffered: bool = True) -> list[str]:
    """Return the command with which Ray starts one of its Python processes; for the dashboard agent, our own file."""
    command = _python_command(component, session_dir, unbuffered)
    return [*command, start_agent.__file__] if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT else command


def _own_packages_first() -> dict[str, str]:
    """Return what loads our packages before anything else in Ray's processes, if the user's folders, which precede ours
    there, hold files of their names, such as a `deploy.py`."""
    names = [f"{name}{end}" for name in ("actors", "learner", "deploy") for end in (".py", "/__init__.py")]
    folders = {Path.cwd(), Path(sys.argv[0]).resolve().parent} - {Path(__file__).parents[3]}
    taken = any((folder / name).exists() for folder in folders for name in names)
    return {"worker_process_setup_hook": "tamiyo.load_packages"} if taken else {}


def ray_has_ended() -> bool:
    """Return whether processes without which the local Ray does not respond have ended, or several others at once.

    After a SIGTERM, the GCS server closes its port at once, but may take a minute to end."""
    node: Any = worker._global_node
    if node is None:
        return False
    ended = {kind for kind, _ in node.dead_processes()}
    if ended & {"raylet", "gcs_server"} or ended >= {"dashboard", "log_monitor"}:
        return True
    return "gcs_server" in node.all_processes and not _listens(node.gcs_address)


def _listens(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        return not isinstance(error, ConnectionRefusedError)  # otherwise it is only slow
    return True


@contextmanager
def _changed_ray(dashboard: bool, agent: bool) -> Iterator[None]:
    """Let Ray start its workers by the fork server while the context is open, and, without a dashboard, none of the
    processes that serve it, copy logs to a terminal or ask a cloud for nodes. Without `agent`, Ray starts no dashboard
    agent, the process that also exports metrics.

    What it starts has a session of its own: systemd, `timeout` and others signal the whole process group, and a run
    that stops writes its checkpoint first. Ray quotes the commands that it gives to the raylet as Windows does, so that
    the raylet would abort at an apostrophe in the path of the interpreter.
    """
    params: dict[str, Any] = {"setup_worker_path": start_worker.__file__}
    changes: dict[str, Any] = {"ConsolePopen": partial(services.ConsolePopen, start_new_session=True)}
    if not dashboard:
        params |= {"no_monitor": True, "include_log_monitor": False}
        changes["start_api_server"] = lambda *args, **kwargs: (None, None)
    if not agent:
        changes["_build_python_executable_command_memory_profileable"] = _command_without_agent
    # Ray finds out what is installed by importing all of it.
    missing = utils.get_dashboard_dependency_error if agent else lambda: ImportError("not needed")
    with (
        patch.multiple(services, **changes),
        patch.object(utils, "get_dashboard_dependency_error", missing),
        patch.object(parameter, "RayParams", partial(parameter.RayParams, **params)),
        patch.object(subprocess, "list2cmdline", shlex.join),
    ):
        yield
