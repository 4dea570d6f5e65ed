"""`RemoteRun`: a run's detached supervisor on a Ray cluster, and calls that are carried out over there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from actors.errors import UserError
from actors.workers.ray_worker import limit_threads
from actors.workers.worker_pool import last_line
from deploy.launch.supervisor import RunPlan, RunStatus, Supervisor

P = ParamSpec("P")
R = TypeVar("R")
BACK_S = 120.0  # how long a supervisor may take to be started again
ON_THE_HEAD = {"node:__internal_head__": 0.001}
"""Ray's mark of the head node, whose loss is the cluster's: a supervisor there cannot be lost with a lesser machine."""


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
                raise _reason(error, f"the supervisor of run {self.name!r} failed") from error
            except RayActorError as error:
                if not isinstance(error, ActorUnavailableError) or time.monotonic() > deadline:
                    raise UserError(
                        f"the supervisor of run {self.name!r} is gone ({last_line(error)}): "
                        "the same command with --resume starts another"
                    ) from error
                time.sleep(0.5)


def start_supervisor(plan: RunPlan) -> None:
    """Returns once it is there; from then on it needs nobody."""
    remote: Any = ray.remote(
        num_cpus=0,
        resources=ON_THE_HEAD,
        max_restarts=-1,
        max_task_retries=0,
        runtime_env={"env_vars": limit_threads()},
    )(Supervisor)
    options = {"name": _actor_name(plan.name), "lifetime": "detached", "max_concurrency": 4}
    handle = remote.options(**options).remote(plan)
    try:
        ray.get(handle.poll.remote())
    except RayTaskError as error:
        raise _reason(error, "the run's supervisor cannot be started") from error
    except RayError as error:
        raise UserError(f"the run's supervisor cannot be started: {last_line(error)}") from error


def is_under_way(name: str) -> bool:
    try:
        ray.get_actor(_actor_name(name))
    except ValueError:
        return False
    return True


def there(call: Callable[P, R]) -> Callable[P, R]:
    """The same function, carried out on a machine of the cluster: there the run's folder is, and its server is reached.
    A `UserError` comes back as what it is."""

    def carried_out(*args: P.args, **kwargs: P.kwargs) -> R:
        remote: Any = ray.remote(num_cpus=0, runtime_env={"env_vars": limit_threads()})(call)
        try:
            answer: R = ray.get(remote.remote(*args, **kwargs))
        except RayTaskError as error:
            raise _reason(error, "the cluster's machines cannot do their part") from error
        except RayError as error:
            raise UserError(f"the cluster's machines cannot do their part: {last_line(error)}") from error
        return answer

    return carried_out


def _reason(error: RayTaskError, what: str) -> UserError:
    return UserError(str(error.cause) if isinstance(error.cause, UserError) else f"{what}: {last_line(error)}")


def _actor_name(name: str) -> str:
    return f"supervisor of {name}"
