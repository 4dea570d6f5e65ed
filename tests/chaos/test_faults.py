"""Processes that are suspended for a while, those that hang and are killed, and a full disk."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from actors.policy.saved import CheckpointKey
from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from deploy.config.flags import parse
from deploy.launch.embedded_redis import EmbeddedRedis
from deploy.launch.process_settings import acting
from tests.support.chaos.harness import SLACK, TARGETS_S, ChaosRun, chaos_run
from tests.support.launching import small

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
MAX_LAG, QUEUE = 4, 8
HANG_S, BETWEEN_HEARTBEATS_S = 20.0, 2.0
LIMITS: dict[str, dict[str, float]] = {
    "suspended": {"queue__max_episodes": QUEUE, "learner__max_policy_lag": MAX_LAG},
    "hung": {"actors__hang_s": HANG_S, "learner__hang_s": HANG_S},
}
suspended, hung = (pytest.mark.parametrize("run", [kind], indirect=True, scope="module") for kind in LIMITS)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosRun]:
    """One of two actors for all tests of a kind, which ends after the last of them."""
    root = tmp_path_factory.mktemp("chaos")
    with EmbeddedRedis() as server, chaos_run(root, "chaos", server, actors__count=2, **LIMITS[request.param]) as run:
        yield run


@contextmanager
def paused(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@suspended
def test_actors_fill_the_queue_and_wait_while_the_learner_is_suspended(run: ChaosRun) -> None:
    (learner,) = run.processes("LearnerService")
    with paused(learner):
        run.wait_for(lambda: run.ledger().queued >= QUEUE)
        time.sleep(1.0)
        full = run.ledger()
        time.sleep(3.0)
        later = run.ledger()
        assert later.queued <= QUEUE
        assert later.accepted == full.accepted
        for key, a in later.actors.items():
            assert a.dropped_backpressure == 0
            assert a.produced - full.actors[key].produced <= 2  # at most the current wave
    run.running_again("learner", time.monotonic())
    run.identities()


@suspended
def test_a_zombie_actor_loses_and_duplicates_no_episode(run: ChaosRun) -> None:
    config, *_ = parse("train", small(run.folder.parent, "chaos"))
    config = dataclasses.replace(config, queue=dataclasses.replace(config.queue, max_episodes=QUEUE))
    known = {number for _, number in run.ledger().actors}
    zombie = run.processes("RayRolloutWorker")[0]
    with paused(zombie):
        time.sleep(0.5)
        index = next(i for i in (0, 1) if _is_silent(run, f"actor-{i}"))
        settings = WorkerSettings(acting(config), index, "chaos", 0, run.server.url, "chaos")
        successor = RolloutWorker(settings, restarted=True)
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
    run.end()


def _is_silent(run: ChaosRun, actor: str) -> bool:
    def produced() -> int:
        return sum(a.produced for (name, _), a in run.ledger().actors.items() if name == actor)

    before = produced()
    time.sleep(2.0)
    return produced() == before


def suspend(run: ChaosRun, process: psutil.Process, limit_s: float) -> None:
    """Suspend a process until it is killed for it."""
    process.send_signal(signal.SIGSTOP)
    since_s = time.monotonic()
    run.wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, limit_s)
    # Not before the limit, which counts from the last heartbeat before the signal.
    assert time.monotonic() - since_s >= HANG_S - BETWEEN_HEARTBEATS_S


@hung
def test_a_suspended_actor_is_replaced(run: ChaosRun) -> None:
    known = {number for _, number in run.ledger().actors}
    suspend(run, run.processes("RayRolloutWorker")[0], HANG_S + SLACK * TARGETS_S["actor"])
    run.wait_for(lambda: any(n not in known and a.accepted for (_, n), a in run.ledger().actors.items()), 120.0)
    run.wait_for(lambda: f"has hung for {HANG_S:g} s; it is killed and restarted" in run.command.out)
    run.wait_for(lambda: run.command.out.count("died and was restarted") == 1)
    run.wait_for_updates(3)
    run.identities()


@hung
def test_a_suspended_learner_is_replaced(run: ChaosRun) -> None:
    (stopped,) = run.processes("LearnerService")
    suspend(run, stopped, HANG_S + SLACK * TARGETS_S["learner"])
    run.running_again("learner", time.monotonic())
    assert f"the learner has hung for {HANG_S:g} s" in run.command.out
    run.identities()


@hung
def test_a_learner_whose_training_thread_hangs_is_replaced(run: ChaosRun) -> None:
    """The process still answers; the thread reads a checkpoint that is a pipe without a writer."""
    pipe = run.folder / "checkpoints" / CheckpointKey(run.checkpoint.progress.generation, 99_999_999).file_name
    notes = run.command.out.count("the learner has hung")
    os.mkfifo(pipe)
    run.wait_for(lambda: run.command.out.count("the learner has hung") > notes, 60.0 + HANG_S)
    pipe.unlink()
    run.running_again("learner", time.monotonic())
    run.identities()


@hung
def test_processes_that_wait_for_the_server_are_not_killed(run: ChaosRun) -> None:
    known, notes = {number for _, number in run.ledger().actors}, run.command.out.count("has hung")
    os.kill(run.server.pid, signal.SIGKILL)
    time.sleep(1.2 * HANG_S)
    assert run.server.restart_if_dead()
    run.running_again("redis", time.monotonic())
    assert {number for _, number in run.ledger().actors} <= known
    assert run.command.out.count("has hung") == notes
    run.wait_for(lambda: "Redis answers again" in run.command.out)  # at the next poll
    run.end()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_run_waits_while_its_disk_is_full(tmp_path: Path, disk: Path) -> None:
    with EmbeddedRedis() as server, chaos_run(tmp_path, "chaos", server, root=disk) as run:
        filler = disk / "filler"
        fill(filler)
        run.wait_for(lambda: "no space left on the disk" in run.command.out)
        at = run.update
        time.sleep(2.0)
        assert run.update <= at + 1
        filler.unlink()
        run.running_again("redis and its disk", time.monotonic())
        run.wait_for(lambda: "the disk has space again" in run.command.out)
        run.identities()
        assert len(run.end().actors) == 1  # no process died
