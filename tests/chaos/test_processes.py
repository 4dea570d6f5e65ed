"""Actors and learner are killed, again and again, under one run: deaths are non-events."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from actors.transport.base import EpisodeHeader, PutStatus
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.chaos.harness import HurtRun, hurt_run
from tests.support.launching import rows

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HurtRun]:
    root = tmp_path_factory.mktemp("hurt")
    with EmbeddedRedis() as server, hurt_run(root, "hurt", server, learner__checkpoint_every=4) as run:
        yield run


def test_an_actor_killed_in_mid_episode_comes_back_as_a_later_incarnation(run: HurtRun) -> None:
    before = {number for _, number in run.ledger().actors}
    run.acting_again(run.kill("RayRolloutWorker"), before)
    run.wait_for_updates(2)
    assert max(number for _, number in run.identities().actors) > max(before)
    run.wait_for(lambda: "actor-0 died and was restarted" in run.command.out)


def test_a_learner_killed_between_update_and_ack_trains_nothing_twice(run: HurtRun) -> None:
    # Checkpoints, and with them acks, come every fourth update; without one, all that was played would be fenced.
    run.wait_for(lambda: run.update > 4 and run.update % 4 == 2)
    assert run.ledger().pending >= 4
    run.running_again("learner", run.kill("LearnerService"))
    run.identities()
    run.wait_for(lambda: "the learner died" in run.command.out)


def test_a_learner_killed_while_it_writes_a_checkpoint_goes_on_from_the_one_before(run: HurtRun) -> None:
    folder = run.folder / "checkpoints"
    for _ in range(5):
        (learner,) = run.processes("LearnerService")
        deadline = time.monotonic() + 30
        while not any(name.endswith(".partial") for name in os.listdir(folder)):
            assert time.monotonic() < deadline
        os.kill(learner.pid, signal.SIGKILL)
        killed = time.monotonic()
        learner.wait(10)
        torn = [name for name in os.listdir(folder) if name.endswith(".partial")]
        run.running_again("learner in its checkpoint", killed)
        run.identities()
        if torn:  # it died before the file had its name
            return
    pytest.fail("the checkpoint was always faster")


def test_what_is_corrupt_is_set_aside_and_what_comes_twice_counts_once(run: HurtRun) -> None:
    before = run.ledger()
    with run.queue() as queue:
        for sequence, payload in ((1, b"not an episode"), (1, b"again"), (3, b"\x00" * 1000), (2, b"late")):
            header = EpisodeHeader(f"hurt/stranger/1/{sequence}", "stranger", 1, sequence, 1, 0, 0)
            first = (sequence, payload) in ((1, b"not an episode"), (3, b"\x00" * 1000))
            status = queue.put(header, payload).status
            assert (status is PutStatus.DUPLICATE) == (not first)
    run.wait_for_updates(6)
    after = run.identities()
    strange = after.actors["stranger", 1]
    assert strange.produced == strange.accepted + strange.refused_fenced == 2
    assert after.dead_lettered - before.dead_lettered == strange.accepted


def test_at_its_end_the_ledger_and_the_lineage_agree(run: HurtRun) -> None:
    run.wait_for_updates(2)
    ledger = run.end()
    assert ledger.trained >= 4 * 10
    assert len(ledger.actors) >= 2
    assert run.checkpoint.progress.generation >= 3
    updates = [m["update"] for m in rows(run.folder / "metrics.jsonl")]
    assert updates == sorted(set(updates))
    print("seconds until running again:", {k: round(v, 1) for k, v in run.times_s.items()})
