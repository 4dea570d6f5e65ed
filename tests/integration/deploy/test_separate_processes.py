"""`tamiyo learner` and `tamiyo actors` as separate processes that share a Redis server with a password."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from actors.transport.redis import connect
from learner.run.checkpoint import load_checkpoint
from tests.support.launching import rows, small, tamiyo
from tests.support.queueing import counts
from tests.support.stores import PASSWORD, server_with_password

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
SECRET = {"TAMIYO_REDIS_PASSWORD": PASSWORD}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with server_with_password(tmp_path) as place:
        yield place


def flags(folder: Path, server: str, *more: str, **changes: object) -> list[str]:
    return [*small(folder.parent, folder.name, **changes), "--redis", f"redis://{server}/0", *more]


def test_one_ctrl_c_stops_a_learner_whose_redis_server_hangs(tmp_path: Path, server: str) -> None:
    port = server.partition(":")[2]
    (process,) = [p for p in psutil.Process().children() if any(port in word for word in p.cmdline())]
    with tamiyo(tmp_path, "learner", *flags(tmp_path / "alone", server), **SECRET) as learner:
        learner.wait_for(lambda: "waiting for episodes" in learner.out)
        process.suspend()
        time.sleep(1.0)  # a request that is under way
        assert learner.end(30, signal.SIGINT) == 130, learner.out + learner.err
        assert learner.err == ""
        assert "did not stop in time" in learner.out
        assert learner.left() == []


def test_a_learner_service_resumes_its_run_and_stays_up_when_finished(tmp_path: Path, server: str) -> None:
    folder = tmp_path / "kept"
    with tamiyo(tmp_path, "actors", *flags(folder, server, learner__updates=2), **SECRET):
        for updates in (2, 4):
            command = flags(folder, server, "--run.service", learner__updates=updates)
            with tamiyo(tmp_path, "learner", *command, **SECRET) as learner:
                learner.wait_for(lambda running=learner: "serving metrics until stopped" in running.out, 120)
                assert learner.end(10) == 0, learner.out + learner.err
        with tamiyo(tmp_path, "learner", *flags(folder, server, learner__updates=4), **SECRET) as refused:
            assert refused.wait() == 2
            assert "already holds a run" in refused.err
    assert [row["update"] for row in rows(folder / "metrics.jsonl")] == [1, 2, 3, 4]
    assert load_checkpoint(folder).progress.generation == 2


def test_actors_can_join_and_leave_during_training(tmp_path: Path, server: str) -> None:
    """Seeds are not repeated, and every episode counts once."""
    folder = tmp_path / "joined"
    command = flags(folder, server, learner__updates=1_000_000)
    start = partial(tamiyo, tmp_path)

    def trained() -> dict[str, list[int]]:
        found = defaultdict(list)
        for row in rows(folder / "episodes.jsonl"):
            found["/".join(row["episode_id"].split("/")[1:3])].append(row["seed"])
        return found

    with start("learner", *command, **SECRET) as learner, start("actors", *command, **SECRET) as first:
        learner.wait_for(lambda: len(trained()) == 1, 120.0)
        with start("actors", *command, **SECRET) as second:
            learner.wait_for(lambda: len(trained()) == 2, 120.0)
            before = {who: len(seeds) for who, seeds in trained().items()}
            learner.wait_for(lambda: all(len(trained()[who]) > n + 4 for who, n in before.items()))
            assert first.end(15) in (0, 130)
            (staying,) = [who for who in trained() if who != min(before)]
            left = len(trained()[staying])
            learner.wait_for(lambda: len(trained()[staying]) > left + 8)
            assert second.end(15) in (0, 130)
        with start("actors", *command, **SECRET) as third:
            learner.wait_for(lambda: len(trained()) == 3, 120.0)
            third.end(15)
        assert learner.end(15) == 130
        assert learner.err == first.err == second.err == third.err == ""
    transport = connect(f"redis://:{PASSWORD}@{server}/0", None, "joined")
    seeds = [seed for own in trained().values() for seed in own]
    assert (len(seeds), len(set(seeds))) == counts(transport, "trained", "trained")
    assert len(transport.ledger().actors) == 3
    transport.close()
