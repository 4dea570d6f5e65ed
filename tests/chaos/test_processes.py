"""A run survives repeated kills of its actors, of its learner and of the server that it embeds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.harness import ChaosRun, chaos_run
from tests.support.launching import rows, small, tamiyo

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosRun]:
    root = tmp_path_factory.mktemp("chaos")
    with EmbeddedRedis() as server, chaos_run(root, "chaos", server, learner__checkpoint_every=4) as run:
        yield run


def test_an_actor_killed_in_mid_episode_restarts_as_a_later_incarnation(run: ChaosRun) -> None:
    before = {number for _, number in run.ledger().actors}
    run.acting_again(run.kill("RayRolloutWorker"), before)
    run.wait_for_updates(2)
    assert max(number for _, number in run.identities().actors) > max(before)
    run.wait_for(lambda: "actor-0 died and was restarted" in run.command.out)


def test_a_learner_killed_between_update_and_ack_trains_nothing_twice(run: ChaosRun) -> None:
    # Checkpoints and acknowledgements come every fourth update; before the first, all episodes would be fenced.
    run.wait_for(lambda: run.update > 4 and run.update % 4 == 2)
    assert run.ledger().pending >= 4
    run.running_again("learner", run.kill("LearnerService"))
    run.identities()
    run.wait_for(lambda: "the learner died" in run.command.out)


def test_the_ledger_and_the_lineage_agree_at_the_end(run: ChaosRun) -> None:
    run.wait_for_updates(2)
    ledger = run.end()
    assert ledger.trained >= 4 * 6
    assert len(ledger.actors) >= 2
    assert run.checkpoint.progress.generation >= 2
    updates = [m["update"] for m in rows(run.folder / "metrics.jsonl")]
    assert updates == sorted(set(updates))
    print("seconds until running again:", {k: round(v, 1) for k, v in run.times_s.items()})


@pytest.mark.long
def test_a_killed_embedded_server_is_restarted(tmp_path: Path) -> None:
    folder = tmp_path / "chaos"
    with tamiyo(tmp_path, "train", *small(tmp_path, "chaos", learner__updates=1_000_000)) as command:
        command.wait_for(lambda: len(rows(folder / "metrics.jsonl")) >= 2, 90.0)
        children = psutil.Process(command.process.pid).children()
        (server,) = [p for p in children if p.name().endswith("-server")]
        server.kill()
        killed, update = time.monotonic(), len(rows(folder / "metrics.jsonl"))
        command.wait_for(lambda: len(rows(folder / "metrics.jsonl")) >= update + 2)
        print(f"embedded redis: running again after {time.monotonic() - killed:.1f} s")
        assert "the embedded Redis server died and was restarted" in command.out
        assert command.end(30) == 130
        assert command.left() == []
    ids = [row["episode_id"] for row in rows(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids))
    assert not psutil.pid_exists(server.pid)
