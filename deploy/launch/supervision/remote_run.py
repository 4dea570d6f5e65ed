"""`RemoteRun`: a handle of a detached supervisor on a Ray cluster; and functions that run on the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from actors.errors import UserError
from actors.process_environment import process_environment
from actors.workers.faults.actor_reports import last_line
from deploy.launch.supervision.supervisor import RunPlan, RunStatus, Supervisor

P = ParamSpec("P")
R = TypeVar("R")
RESTART_TIMEOUT_S = 120.0  # how long to wait for Ray to restart a supervisor
HEAD_NODE = {"node:__internal_head__": 0.001}
"""Ray's resource that only the head node has. A supervisor there is lost only if the whole cluster is lost."""


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
                        f"the supervisor of run {self.name!r} is lost ({last_line(error)}): "
                        "run the same command with --resume to continue the run"
                    ) from error
                time.sleep(0.5)


def start_supervisor(plan: RunPlan) -> None:
    """Start a detached supervisor and wait until it answers. Raises `UserError` if it fails."""
    remote: Any = ray.remote(
        num_cpus=0,
        resources=HEAD_NODE,
        max_restarts=-1,
        max_task_retries=0,
        runtime_env={"env_vars": process_environment(False)},
    )(Supervisor)
    options = {"name": _actor_name(plan.name), "lifetime": "detached", "max_concurrency": 4}
    handle = remote.options(**options).remote(plan)
    try:
        ray.get(handle.poll.remote())
    except RayTaskError as error:
        raise _user_error(error, "the run's supervisor cannot be started") from error
    except RayError as error:
        raise UserError(f"the run's supervisor cannot be started: {last_line(error)}") from error


def is_running(name: str) -> bool:
    """Whether the cluster has a supervisor of this run."""
    try:
        ray.get_actor(_actor_name(name))
    except ValueError:
        return False
    return True


def run_on_cluster(call: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it runs on a machine of the cluster, which has access to the run folder and to Redis.

    A `UserError` of the function is raised here again.
    """

    def call_remotely(*args: P.args, **kwargs: P.kwargs) -> R:
        remote: Any = ray.remote(num_cpus=0, runtime_env={"env_vars": process_environment(False)})(call)
        try:
            answer: R = ray.get(remote.remote(*args, **kwargs))
        except RayTaskError as error:
            raise _user_error(error, "a task on the cluster failed") from error
        except RayError as error:
            raise UserError(f"a task on the cluster failed: {last_line(error)}") from error
        return answer

    return call_remotely


def _user_error(error: RayTaskError, what: str) -> UserError:
    return UserError(str(error.cause) if isinstance(error.cause, UserError) else f"{what}: {last_line(error)}")


def _actor_name(name: str) -> str:
    return f"supervisor of {name}"
