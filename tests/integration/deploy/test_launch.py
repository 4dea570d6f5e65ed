"""`tamiyo train` from the command line: a run with Ctrl-C and resume to its end, killed processes,
and learner and actors as separate commands."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import yaml

from actors.transport.redis import connect
from learner.run.checkpoint import LearnerProgress, load_checkpoint
from tests.support.launching import Command, command_line, rows, running, small, tamiyo
from tests.support.queueing import counts
from tests.support.stores import PASSWORD, server_with_password

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


class Finished(NamedTuple):
    """A run that a signal to its process group stopped and that was resumed to its end, and what was seen of it."""

    folder: Path
    stopped: Command
    resumed: Command
    reachable: set[str]  # addresses that other machines could connect to
    stop_s: float
    left: list[list[str]]  # processes and files that the first and the second part left behind
    before: LearnerProgress  # of the checkpoint that the second part began with


def updates(folder: Path) -> int:
    return len(rows(folder / "metrics.jsonl"))


def beyond_loopback(run: Command) -> set[str]:
    """Addresses that any process of the run listens on and that others can reach."""
    connections = [c for p in run.relatives() for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert len(connections) > 5
    return {c.laddr.ip for c in connections} - {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("runs")
    folder = root / "whole"
    # Ray quotes the path of the interpreter, and its sockets need short paths.
    venv, temporary = root / "My Friend's files" / "venv", root / ("long" * 20)
    venv.parent.mkdir()
    venv.symlink_to(sys.prefix)
    temporary.mkdir()
    words = [str(venv / "bin" / "python"), "-m", "deploy.cli", "train"]
    flags = small(root, "whole", learner__updates=1000)
    with running(root, [*words, *flags], {"TMPDIR": str(temporary)}) as stopped:
        stopped.wait_for(lambda: updates(folder) >= 2, 120)
        reachable = beyond_loopback(stopped)
        asked = time.monotonic()
        os.killpg(stopped.process.pid, signal.SIGTERM)  # as `timeout` and systemd do
        stopped.wait(30)
        stop_s = time.monotonic() - asked
        left = stopped.left()
    before = load_checkpoint(folder).progress
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 9999, "torn')  # what a machine that lost power may leave
    goal = ("--learner.updates", str(before.update + 2))
    with tamiyo(root, "train", "--resume", str(folder), *goal) as resumed:
        resumed.wait(150)
        return Finished(folder, stopped, resumed, reachable, stop_s, [left, resumed.left()], before)


def test_a_signal_stops_cleanly_and_names_the_command_that_resumes(finished: Finished) -> None:
    run = finished.stopped
    assert run.process.returncode == 130
    assert finished.stop_s < 10
    assert run.err == ""
    assert f"--resume {finished.folder}" in " ".join(run.out.split()).replace("- ", "-")
    assert run.out.count("stopped; the checkpoint is written") == 1
    assert finished.left[0] == []
    assert finished.before.update >= 2
    assert finished.reachable == set()


def test_a_run_succeeds_and_leaves_no_processes_behind(finished: Finished) -> None:
    run = finished.resumed
    assert run.process.returncode == 0, run.err
    assert run.err == ""
    assert finished.left[1] == []
    assert "report:" in run.out
    assert "Traceback" not in run.out


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_new_run_starts_from_given_weights_also_with_other_slots(finished: Finished, tmp_path: Path) -> None:
    """With next to no learning rate it ends with the weights that it began with, not with those of its seed, from
    which the given ones came by three updates."""
    still = {"learner__updates": 1, "learner__lr": 1e-12, "env__slots": 2}
    with tamiyo(tmp_path, "train", "--init-from", str(finished.folder), *small(tmp_path, "from", **still)) as run:
        assert run.wait(200) == 0, run.err
    given, kept = (
        dict[str, Any](load_checkpoint(folder).weights.tensors) for folder in (finished.folder, tmp_path / "from")
    )
    assert given.keys() == kept.keys()
    moved = ("normalizer", "critic.2")  # by the data alone: running statistics, and the layer that PopArt rescales
    own = [name for name in given if not any(part in name for part in moved)]
    assert max(abs(given[name] - kept[name]).max() for name in own) < 1e-6


def test_a_run_writes_all_documented_files(finished: Finished) -> None:
    folder, last = finished.folder, finished.before.update + 2
    for name in ("config.yaml", "references.json", "timeline.json", "report.html"):
        assert (folder / name).stat().st_size > 100, name
    assert list((folder / "tensorboard").glob("events.*"))
    episodes = rows(folder / "episodes.jsonl")
    assert [sum(e["update"] == u for e in episodes) for u in range(1, last + 1)] == [4] * last
    assert {e["steps"] for e in episodes} <= {1, 2, 3, 4}
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["env"]["horizon_epochs"] == 4
    assert settings["run"]["name"] == "whole"


def test_a_resumed_run_continues_with_the_next_update(finished: Finished) -> None:
    goal = finished.before.update + 2
    after = load_checkpoint(finished.folder).progress
    assert after.update == goal
    assert after.generation > finished.before.generation
    assert after.episodes_trained == 4 * goal
    assert [m["update"] for m in rows(finished.folder / "metrics.jsonl")] == list(range(1, goal + 1))
    episodes = rows(finished.folder / "episodes.jsonl")
    assert len({e["episode_id"] for e in episodes}) == len(episodes) == 4 * goal


@pytest.mark.long
@pytest.mark.parametrize("hangs", [True, False])
def test_a_run_whose_learner_cannot_be_asked_is_stopped(tmp_path: Path, hangs: bool) -> None:
    """By one Ctrl-C if it hangs, or by SIGTERM to all processes, as by `systemctl stop` and batch systems."""
    with tamiyo(tmp_path, "train", *small(tmp_path, "run", learner__updates=1000)) as run:
        run.wait_for(lambda: updates(tmp_path / "run") >= 2)
        if hangs:
            (learner,) = [p for p in run.relatives() if command_line(p).startswith("ray::LearnerService")]
            learner.send_signal(signal.SIGSTOP)
            assert run.end(30, signal.SIGINT) == 130
            assert run.err == ""
            assert "the learner did not stop in time and is killed" in run.out
        else:
            for process in run.relatives():
                process.terminate()
            assert run.wait(40) == 130, run.err
        assert "stopped; the newest checkpoint is an earlier one" in " ".join(run.out.split())
        assert run.left() == []
    assert load_checkpoint(tmp_path / "run").progress.update >= 1


@pytest.mark.chaos
def test_all_processes_end_when_the_driver_is_killed(tmp_path: Path) -> None:
    with tamiyo(tmp_path, "train", *small(tmp_path, "killed", learner__updates=1000)) as run:
        run.wait_for(lambda: updates(tmp_path / "killed") >= 1)
        assert len(run.relatives()) > 5  # server, Ray's own, learner, actor: the mark finds them
        run.end(10, signal.SIGKILL)
        assert run.left(15) == []
    load_checkpoint(tmp_path / "killed")


# `tamiyo learner` and `tamiyo actors` that share a Redis server with a password


SECRET = {"TAMIYO_REDIS_PASSWORD": PASSWORD}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with server_with_password(tmp_path) as place:
        yield place


def shared(folder: Path, server: str, *more: str, **changes: object) -> list[str]:
    return [*small(folder.parent, folder.name, **changes), "--redis", f"redis://{server}/0", *more]


@pytest.mark.long
def test_one_ctrl_c_stops_a_learner_whose_redis_server_hangs(tmp_path: Path, server: str) -> None:
    port = server.partition(":")[2]
    (process,) = [p for p in psutil.Process().children() if any(port in word for word in p.cmdline())]
    with tamiyo(tmp_path, "learner", *shared(tmp_path / "alone", server), **SECRET) as learner:
        learner.wait_for(lambda: "waiting for episodes" in learner.out)
        process.suspend()
        time.sleep(1.0)  # a request that is under way
        assert learner.end(30, signal.SIGINT) == 130, learner.out + learner.err
        assert learner.err == ""
        assert "did not stop in time" in learner.out
        assert learner.left() == []


@pytest.mark.long
def test_a_learner_service_resumes_its_run_and_stays_up_when_finished(tmp_path: Path, server: str) -> None:
    folder = tmp_path / "kept"
    with tamiyo(tmp_path, "actors", *shared(folder, server, learner__updates=2), **SECRET):
        for updates in (2, 4):
            command = shared(folder, server, "--run.service", learner__updates=updates)
            with tamiyo(tmp_path, "learner", *command, **SECRET) as learner:
                learner.wait_for(lambda running=learner: "serving metrics until stopped" in running.out, 120)
                assert learner.end(10) == 0, learner.out + learner.err
        with tamiyo(tmp_path, "learner", *shared(folder, server, learner__updates=4), **SECRET) as refused:
            assert refused.wait() == 2
            assert "already holds a run" in refused.err
    assert [row["update"] for row in rows(folder / "metrics.jsonl")] == [1, 2, 3, 4]
    assert load_checkpoint(folder).progress.generation == 2


@pytest.mark.long
def test_actors_can_join_and_leave_during_training(tmp_path: Path, server: str) -> None:
    """Seeds are not repeated, and every episode counts once."""
    folder = tmp_path / "joined"
    command = shared(folder, server, learner__updates=1_000_000)
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
