"""Hung processes are killed and restarted; processes that only wait are not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from actors.policy.saved import CheckpointKey
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.harness import SLACK, TARGETS_S, ChaosRun, chaos_run

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
HANG_S = 20.0
BETWEEN_HEARTBEATS_S = 2.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosRun]:
    root = tmp_path_factory.mktemp("chaos")
    with EmbeddedRedis() as server:
        limits = {"actors__count": 2, "actors__hang_s": HANG_S, "learner__hang_s": HANG_S}
        with chaos_run(root, "chaos", server, **limits) as run:
            yield run


def gone_within(run: ChaosRun, process: psutil.Process, since_s: float, limit_s: float) -> None:
    run.wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, limit_s)
    # Not before the limit, which counts from the last heartbeat before the signal.
    assert time.monotonic() - since_s >= HANG_S - BETWEEN_HEARTBEATS_S


def test_a_suspended_actor_is_replaced(run: ChaosRun) -> None:
    known = {number for _, number in run.ledger().actors}
    stopped = run.processes("RayRolloutWorker")[0]
    stopped.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    gone_within(run, stopped, since, HANG_S + SLACK * TARGETS_S["actor"])
    run.wait_for(lambda: any(n not in known and a.accepted for (_, n), a in run.ledger().actors.items()), 120.0)
    run.wait_for(lambda: f"has hung for {HANG_S:g} s; it is killed and restarted" in run.command.out)
    run.wait_for(lambda: run.command.out.count("died and was restarted") == 1)
    run.wait_for_updates(3)
    run.identities()


def test_a_suspended_learner_is_replaced(run: ChaosRun) -> None:
    (stopped,) = run.processes("LearnerService")
    stopped.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    gone_within(run, stopped, since, HANG_S + SLACK * TARGETS_S["learner"])
    run.running_again("learner", time.monotonic())
    assert f"the learner has hung for {HANG_S:g} s" in run.command.out
    run.identities()


def test_a_learner_whose_training_thread_hangs_is_replaced(run: ChaosRun) -> None:
    """The process still answers; the thread reads a checkpoint that is a pipe without a writer."""
    pipe = run.folder / "checkpoints" / CheckpointKey(run.checkpoint.progress.generation, 99_999_999).file_name
    notes = run.command.out.count("the learner has hung")
    os.mkfifo(pipe)
    run.wait_for(lambda: run.command.out.count("the learner has hung") > notes, 60.0 + HANG_S)
    pipe.unlink()
    run.running_again("learner", time.monotonic())
    run.identities()


def test_processes_that_wait_for_the_server_are_not_killed(run: ChaosRun) -> None:
    server = run.server
    known, notes = {number for _, number in run.ledger().actors}, run.command.out.count("has hung")
    os.kill(server.pid, signal.SIGKILL)
    time.sleep(1.2 * HANG_S)
    assert server.restart_if_dead()
    run.running_again("redis", time.monotonic())
    assert {number for _, number in run.ledger().actors} <= known
    assert run.command.out.count("has hung") == notes
    run.wait_for(lambda: "Redis answers again" in run.command.out)  # at the next poll


def test_the_ledger_and_the_lineage_agree_at_the_end(run: ChaosRun) -> None:
    run.end()
