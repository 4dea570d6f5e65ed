"""`tamiyo train --in-process`: the numbers of one actor and one learner in lock-step on a real server, without Ray."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from deploy.cli import main
from deploy.config.flags import parse
from deploy.launch.embedded_redis import EmbeddedRedis
from deploy.launch.process_settings import acting, learner_settings
from learner.run.checkpoint import load_checkpoint
from learner.service import LearnerService
from tests.support.launching import rows

pytestmark = pytest.mark.integration
UPDATES = 3
FLAGS = [
    *("--preset", "quick", "--imitation.episodes", "0", "--run.reference_episodes", "4", "--env.tasks", "moons"),
    *("--env.horizon_epochs", "6", "--env.inner_steps", "2", "--learner.updates", str(UPDATES)),
    *("--learner.batch_episodes", "8", "--actors.count", "1", "--actors.envs_per_actor", "8"),
]


def untimed(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of all updates but times, and what is derived from them."""
    lines, timed = rows(run_dir / "metrics.jsonl"), ("wait_share", "bottleneck")
    return [{k: v for k, v in row.items() if not k.endswith("_s") and not k.startswith(timed)} for row in lines]


def in_lock_step(run_dir: Path, server: EmbeddedRedis, namespace: str) -> None:
    """A learner in a thread; an actor that samples a batch whenever there are new weights."""
    run_dir.mkdir()
    config = parse("train", [*FLAGS, "--run.name", namespace, "--redis", server.url]).config
    service = LearnerService(learner_settings(config, run_dir))
    service.start()
    worker = RolloutWorker(WorkerSettings(acting(config), 0, namespace, config.run.seed, server.url, namespace))
    for _ in range(UPDATES):
        worker.sample()
        deadline = time.monotonic() + 60
        while worker.transport.fetch(worker.weights.digest if worker.weights else "") is None:
            service.poll()
            assert time.monotonic() < deadline
            time.sleep(0.01)
    service.stop()
    worker.close()


def test_it_has_the_numbers_of_an_actor_and_a_learner_in_lock_step(
    tmp_path: Path, embedded_redis: EmbeddedRedis, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    assert main(["train", "--in-process", *FLAGS, "--run.root", str(tmp_path), "--run.name", "own"]) == 0
    assert not ray.is_initialized()
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before
    assert "report: " in capsys.readouterr().out
    for name in ("report.html", "references.json", "timeline.json"):
        assert (tmp_path / "own" / name).is_file()
    in_lock_step(tmp_path / "apart", embedded_redis, namespace)
    own, apart = untimed(tmp_path / "own"), untimed(tmp_path / "apart")
    assert len(own) == UPDATES
    assert own == apart
    ours, theirs = (load_checkpoint(tmp_path / name).weights.tensors for name in ("own", "apart"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours | theirs)
