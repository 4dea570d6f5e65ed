"""What each process of a run sees of a machine's GPUs. Ray is real, its two GPUs are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from actors.errors import UserError
from actors.workers.worker_pool import WorkerPool
from deploy.config.flags import parse
from deploy.config.schema import Config
from deploy.evaluation.cells import workers
from deploy.launch import processes
from deploy.launch.cluster import run_on_cluster
from deploy.launch.embedded_redis import EmbeddedRedis
from deploy.launch.prepare import open_run
from deploy.launch.process_settings import learner_settings
from deploy.launch.ray.local_ray import local_ray
from deploy.launch.supervision.endpoint_pool import EndpointPool
from deploy.launch.supervision.learner_actor import LearnerActor
from deploy.launch.supervision.supervisor import Supervisor
from tests.support.launching import RAY_TOKEN, small

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
VISIBLE = "CUDA_VISIBLE_DEVICES"
TWO_GPUS = {"RAY_OVERRIDE_RESOURCES": '{"GPU": 2}', VISIBLE: "0,1"}


def config(folder: Path, **changes: Any) -> Config:
    """Of a run of convolutional hosts, which would use a GPU."""
    return parse("train", small(folder, "run", env__tasks="gratings", **changes), resumable=True).config


@pytest.fixture(scope="module")
def redis() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture(scope="module", autouse=True)
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", RAY_TOKEN)
        for name in ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_USAGE_STATS_ENABLED"):
            patch.setenv(name, "")  # so that they are removed afterwards
            patch.delenv(name)
        for name, value in TWO_GPUS.items():
            patch.setenv(name, value)
        with local_ray(config(folder, actors__count=3)):
            yield


def seen_by(handle: Any) -> str | None:
    """The GPUs that CUDA would find in the process of a Ray actor."""
    return ray.get(handle.__ray_call__.remote(lambda actor: os.getenv(VISIBLE)), timeout=60)  # type: ignore[no-any-return]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_actors_share_a_gpu_and_the_learner_has_another(redis: str, tmp_path: Path) -> None:
    own = config(tmp_path, actors__count=2, actors__gpus_per_actor=0.5, learner__updates=1000, run__redis=redis)
    supervisor = Supervisor(own, open_run(own, None))
    pool = supervisor._pool
    assert isinstance(pool, WorkerPool)
    try:
        wait_for(lambda: pool.alive == 2)
        actors = [seen_by(member.handle) for member in pool._members]
        learner = seen_by(supervisor._learner._handle)
    finally:
        supervisor.close(at_once=True)
    assert {learner, *actors} == {"0", "1"}
    assert actors[0] == actors[1] != learner


@pytest.mark.long
def test_processes_without_a_share_see_no_gpu(redis: str, tmp_path: Path) -> None:
    """The learner, tasks on a cluster, processes of teachers and evaluations, and the endpoint."""
    own = config(tmp_path, learner__device="cpu", run__redis=redis)
    learner, endpoint = (
        LearnerActor(learner_settings(own, tmp_path), 0.0, print),
        EndpointPool(tmp_path, "redis://localhost", print),
    )
    try:
        process = psutil.Process(endpoint._process.pid)
        wait_for(lambda: process.environ().get(VISIBLE) == "")  # it has a copy of ours at first
        assert seen_by(learner._handle) == ""
        assert run_on_cluster(os.getenv)(VISIBLE) == ""
        with workers(1) as pool:
            assert pool.submit(os.getenv, VISIBLE).result() == ""
    finally:
        learner.close()
        endpoint.stop()


def test_a_run_that_does_not_fit_on_its_machine_is_refused(
    redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "local_ray", lambda *_: nullcontext(""))  # which is there
    own = config(tmp_path, actors__count=3, actors__gpus_per_actor=0.6, run__redis=redis)
    with pytest.raises(UserError, match=r"2 of 3 actors fit on the GPUs that Ray has.*: lower actors"):
        processes.run_actors(own)
