"""A suspended learner and a zombie actor."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from deploy.config.flags import parse
from deploy.launch.embedded_redis import EmbeddedRedis
from deploy.launch.process_settings import acting
from tests.support.chaos.harness import ChaosRun, chaos_run
from tests.support.launching import small

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]
MAX_LAG, QUEUE = 4, 8
ROOM = 10  # of the queue: two batches of four episodes, and a quarter more


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosRun]:
    root = tmp_path_factory.mktemp("chaos")
    limits = {"actors__count": 2, "queue__max_episodes": QUEUE, "learner__max_policy_lag": MAX_LAG}
    with EmbeddedRedis() as server, chaos_run(root, "chaos", server, **limits) as run:
        yield run


@contextmanager
def paused(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_actors_fill_the_queue_and_wait_while_the_learner_is_suspended(run: ChaosRun) -> None:
    (learner,) = run.processes("LearnerService")
    with paused(learner):
        run.wait_for(lambda: run.ledger().queued >= QUEUE)
        time.sleep(1.0)
        full = run.ledger()
        time.sleep(3.0)
        later = run.ledger()
        assert later.queued <= ROOM
        assert later.accepted == full.accepted
        for key, a in later.actors.items():
            assert a.dropped_backpressure == 0
            assert a.produced - full.actors[key].produced <= 2  # at most the current wave
    run.running_again("learner", time.monotonic())
    run.identities()


def test_a_zombie_actor_loses_and_duplicates_no_episode(run: ChaosRun) -> None:
    config, *_ = parse("train", small(run.folder.parent, "chaos"))
    config = dataclasses.replace(config, queue=dataclasses.replace(config.queue, max_episodes=QUEUE))
    known = {number for _, number in run.ledger().actors}
    zombie = run.processes("RayRolloutWorker")[0]
    with paused(zombie):
        time.sleep(0.5)
        index = next(i for i in (0, 1) if _is_silent(run, f"actor-{i}"))
        successor = RolloutWorker(
            WorkerSettings(acting(config), index, "chaos", 0, run.server.url, "chaos"), restarted=True
        )
        assert successor.incarnation > max(known)
        for _ in range(2):
            successor.sample()
        produced = successor.outbox.counts.produced
    run.wait_for_updates(5)
    ledger = run.identities()
    late = ledger.actors[f"actor-{index}", successor.incarnation]
    assert late.produced == produced == late.accepted + late.unsent
    sent = Counter(tuple(i.split("/")[1:3]) for i in run.episode_ids)
    assert sent[f"actor-{index}", str(successor.incarnation)] > 0


def _is_silent(run: ChaosRun, actor: str) -> bool:
    def produced() -> int:
        return sum(a.produced for (name, _), a in run.ledger().actors.items() if name == actor)

    before = produced()
    time.sleep(2.0)
    return produced() == before


def test_the_ledger_and_the_lineage_agree_at_the_end(run: ChaosRun) -> None:
    run.end()
