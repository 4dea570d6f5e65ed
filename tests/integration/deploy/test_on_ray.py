"""Actors and learners on a real, local Ray, whose two GPUs are pretended: what each process sees of them, and users'
environments: they are closed, what they leave is ended, and their faults are explained."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.experimental import internal_kv

from actors.config import ActingConfig, ActorsConfig, GymConfig, PolicyConfig, QueueConfig
from actors.errors import UserError
from actors.gym.make import gym_converter
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.workers.hang_detector import NAMESPACE
from actors.workers.rollout_worker import WorkerSettings
from actors.workers.worker_pool import WorkerPool
from deploy.config.flags import parse
from deploy.config.schema import Config
from deploy.evaluation.cells import workers
from deploy.launch import processes
from deploy.launch.cluster import on_cluster
from deploy.launch.prepare import open_run
from deploy.launch.process_settings import learner_settings
from deploy.launch.ray.local_ray import local_ray
from deploy.launch.supervision.endpoint_pool import EndpointPool
from deploy.launch.supervision.learner_actor import LearnerActor
from deploy.launch.supervision.supervisor import Supervisor
from tests.support.env import gym_envs
from tests.support.launching import RAY_TOKEN, small
from tests.support.stores import Store
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
VISIBLE, WAIT_S = "CUDA_VISIBLE_DEVICES", 90.0
TWO_GPUS = {"RAY_OVERRIDE_RESOURCES": '{"GPU": 2}', VISIBLE: "0,1"}
ENVS = 2


def config(folder: Path, **changes: Any) -> Config:
    return parse("train", small(folder, "run", env__tasks="gratings", **changes)).config


@pytest.fixture(scope="module", autouse=True)
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_USAGE_STATS_ENABLED"):
            patch.setenv(name, "")  # so that they are removed afterwards
            patch.delenv(name)
        for name, value in ({"RAY_AUTH_TOKEN": RAY_TOKEN} | TWO_GPUS).items():
            patch.setenv(name, value)
        with local_ray(config(tmp_path_factory.mktemp("ray"), actors__count=3)):
            yield


def test_without_dashboard_and_metrics_ray_has_no_dashboard_agent() -> None:
    started = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert [c for c in started if "start_agent.py" in c]
    assert not [c for c in started if "DashboardAgent" in c or "dashboard/agent.py" in c.split("start_agent.py")[0]]


class Actors:
    """A pool of one actor with environments in `folder`, and what it said."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.said = folder, list[str]()
        name = f"{gym_envs.__name__}:tests/Simulated-v0"
        acting = ActingConfig(
            gym=GymConfig(id=name, kwargs=(f"folder={folder}",)),
            actors=ActorsConfig(count=1, envs_per_actor=ENVS),
            queue=QueueConfig(max_episodes=100_000),
        )
        learner = store(max_episodes=100_000)
        learner.open_generation(-1, "learner")
        spaces = gym_converter(acting.gym).spaces
        learner.publish(to_weights(FactoredRecurrentActorCritic(spaces, PolicyConfig()), 0, 1, 8))
        wait_for(self.simulators)  # of the look at the spaces; just started, it has no command line yet
        self.end_simulators()
        settings = WorkerSettings(acting, 0, "run", 0, store.url, store.namespace, str(folder))
        self.pool = WorkerPool(settings, self.said.append)

    def simulators(self) -> list[psutil.Process]:
        found, nap = psutil.process_iter(["cmdline"]), gym_envs.nap(self.folder)
        return [process for process in found if nap in " ".join(process.info["cmdline"] or ())]

    def end_simulators(self) -> None:
        while found := self.simulators():
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def files(self, word: str) -> set[str]:
        return {path.name.removeprefix(f"{word}-") for path in self.folder.glob(f"{word}-*")}

    def pump(self, until: Callable[[list[Any]], object], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not until(self.pool.pump(0.1)):
            assert time.monotonic() < deadline, self.said


@pytest.fixture
def actors(tmp_path: Path, store: Store) -> Iterator[Actors]:
    made = Actors(tmp_path, store)
    yield made
    made.pool.stop(at_once=True)
    made.end_simulators()


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def pulses() -> list[bytes]:
    return list(internal_kv._internal_kv_list("pulse/", namespace=NAMESPACE))


def test_a_fault_of_an_environment_is_explained_and_its_simulators_end(actors: Actors) -> None:
    looked_at = actors.files("open")
    actors.pump(bool)
    first, theirs = actors.files("open") - looked_at, actors.simulators()
    assert (len(first), len(theirs)) == (ENVS, 2 * ENVS)
    (actors.folder / "wait").touch()  # until its alarm, which Python has in the main thread alone
    actors.pump(lambda reports: actors.said)
    log = actors.folder / "actors" / "actor-0.log"
    assert actors.said[0].startswith("actor-0 failed (TimeoutError: the simulator does not answer; ")
    assert actors.said[0].endswith(f"; the traceback is in {log})")
    assert actors.said[1].splitlines()[0].endswith(", in step")
    assert gym_envs.__file__ in actors.said[1]
    assert actors.files("closed") - looked_at == first
    assert all(part in log.read_text() for part in ("the simulator is up\n", "Traceback (most recent call last):"))
    assert log.read_text().splitlines()[-1] == "TimeoutError: the simulator does not answer"
    actors.pump(bool)
    assert gone(theirs)

    theirs = actors.simulators()
    assert len(pulses()) == 1  # not that of the process before it
    actors.pool.stop()
    assert actors.files("closed") == actors.files("open")
    wait_for(lambda: gone(theirs))
    assert pulses() == []


@pytest.mark.long
def test_actors_that_die_or_are_removed_leave_nothing(actors: Actors) -> None:
    looked_at = actors.files("open")
    actors.pump(bool)
    first, theirs = actors.files("open") - looked_at, actors.simulators()
    (actors.folder / "exit").touch()
    actors.pump(lambda reports: not actors.pool.alive)
    actors.pump(bool)
    log = actors.folder / "actors" / "actor-0.log"
    assert f"actor-0 died and was restarted; what it printed is in {log}" in actors.said
    assert gone(theirs)

    actors.pool._add(1)
    actors.pump(lambda reports: any(r.actor == "actor-1" for r in reports))
    assert len(actors.files("open") - looked_at) == 3 * ENVS
    actors.pool._remove(actors.pool._members[-1])
    actors.pump(lambda reports: len(actors.files("closed") - looked_at) == ENVS)
    theirs = actors.simulators()
    actors.pool.stop()
    assert actors.files("open") - actors.files("closed") == first
    wait_for(lambda: gone(theirs))


def seen_by(handle: Any) -> str | None:
    return ray.get(handle.__ray_call__.remote(lambda actor: os.getenv(VISIBLE)), timeout=60)


def test_actors_share_a_gpu_and_the_learner_has_another(store: Store, tmp_path: Path) -> None:
    own = config(tmp_path, actors__count=2, actors__gpus_per_actor=0.5, learner__updates=1000, run__redis=store.url)
    supervisor = Supervisor(own, open_run(own, None))
    pool = supervisor._pool
    try:
        wait_for(lambda: pool.alive == 2, WAIT_S)
        actors = [seen_by(member.handle) for member in pool._members]
        learner = seen_by(supervisor._learner._handle)
    finally:
        supervisor.close(at_once=True)
    assert {learner, *actors} == {"0", "1"}
    assert actors[0] == actors[1] != learner


@pytest.mark.long
def test_processes_without_a_share_see_no_gpu(store: Store, tmp_path: Path) -> None:
    """The learner, tasks on a cluster, processes of teachers and evaluations, and the endpoint."""
    own = config(tmp_path, learner__device="cpu", run__redis=store.url)
    learner = LearnerActor(learner_settings(own, tmp_path), 0.0, print)
    endpoint = EndpointPool(tmp_path, "redis://localhost", print)
    try:
        process = psutil.Process(endpoint._process.pid)
        wait_for(lambda: process.environ().get(VISIBLE) == "", WAIT_S)  # it has a copy of ours at first
        assert seen_by(learner._handle) == ""
        assert on_cluster(os.getenv, VISIBLE) == ""
        with workers(1) as pool:
            assert pool.submit(os.getenv, VISIBLE).result() == ""
    finally:
        learner.close()
        endpoint.stop()


def test_a_run_that_does_not_fit_on_its_machine_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "local_ray", lambda *_: nullcontext(""))  # which is there
    own = config(tmp_path, actors__count=3, actors__gpus_per_actor=0.6, run__redis=store.url)
    with pytest.raises(UserError, match=r"2 of 3 actors fit on the GPUs that Ray has.*: lower actors"):
        processes.run_actors(own)


def test_workers_are_forks_and_new_processes_when_the_fork_server_has_ended() -> None:
    class Worker:  # its code travels with it, so that nothing of ours is imported for it
        def look(self) -> tuple[int, int, bool, float]:
            wanted = {"torch", "actors.workers.rollout_worker", "actors.kernels.policy.compile"}
            preloaded = wanted <= set(sys.modules)
            return os.getpid(), os.getppid(), preloaded, float(np.random.random())  # noqa: NPY002 - users call it

    remote: Any = ray.remote(num_cpus=0, max_restarts=1, max_task_retries=-1)(Worker)
    first, second = remote.remote(), remote.remote()
    one, two = ray.get([first.look.remote(), second.look.remote()], timeout=60)
    (pid, server, _, drawn), other = one, two[0]
    assert psutil.Process(server).parent() == psutil.Process()
    assert one[1:3] == two[1:3] == (server, True)
    assert drawn != two[3]
    psutil.Process(server).kill()
    os.kill(pid, signal.SIGKILL)  # which Ray restarts
    again = ray.get(first.look.remote(), timeout=60)
    assert again[1] != server
    assert not again[2]
    assert ray.get(second.look.remote(), timeout=60)[0] == other  # what was forked stays
