"""Runs on a three-node cluster: the driver, a node or the supervisor is lost, and the number of nodes changes.

Some are submitted from outside, with ray://."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.run.checkpoint import load_checkpoint
from tests.support.chaos.harness import SLACK, TARGETS_S
from tests.support.chaos.nodes import ANSWER
from tests.support.launching import rows, small, tamiyo
from tests.support.ports import free_port
from tests.support.stores import PASSWORD, server_with_password
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
TIMEOUT_S = 300.0  # the tests share a busy machine
SECRET = {"TAMIYO_REDIS_PASSWORD": PASSWORD}
OWN_TASK = """
import numpy as np
from actors.env.tasks.families.planar import spirals

def mine(rng: np.random.Generator):
    return spirals(rng)
"""


class Nodes:
    """Three nodes in a separate process, as Ray reads its security settings only once: a head node with room for the
    learner and one actor, and two with room for one actor each. The cluster requires a token, which this process and
    its children have.

    `address` is for drivers on its machines, `client` for `ray://` clients elsewhere.
    """

    def __init__(self) -> None:
        port = free_port()
        self.client = f"ray://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.chaos.nodes", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self.read()

    def read(self) -> str:
        reply = next(line for line in self.process.stdout if line.startswith(ANSWER))
        return reply.removeprefix(ANSWER).strip()

    def ask(self, command: str) -> str:
        print(command, file=self.process.stdin, flush=True)
        return self.read()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    security = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",  # the tests share a busy machine
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in security.items():
            patch.setenv(name, value)
        nodes = Nodes()
        try:
            yield nodes
        finally:
            nodes.process.communicate("", timeout=30)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server_with_password(tmp_path_factory.mktemp("server")) as place:
        yield f"redis://{place}/0"


def flags(root: Path, name: str, address: str, url: str, **changes: object) -> list[str]:
    changes = {"learner__updates": 1_000_000} | changes
    return [*small(root, name, **changes), *("--address", address, "--redis", url)]


def updates(folder: Path) -> int:
    return len(rows(folder / "metrics.jsonl"))


def played(folder: Path) -> set[tuple[str, str]]:
    """Names and incarnations of the actors whose episodes were trained on."""
    ids = [row["episode_id"].split("/") for row in rows(folder / "episodes.jsonl")]
    return {(actor, incarnation) for _, actor, incarnation, _ in ids}


def stop(folder: Path, cluster: Nodes, address: str) -> None:
    with tamiyo(folder.parent, "stop", folder.name, "--address", address) as stopping:
        assert stopping.wait(TIMEOUT_S) == 0, stopping.out + stopping.err
        assert stopping.err == ""
    ids = [row["episode_id"] for row in rows(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids)) == load_checkpoint(folder).progress.episodes_trained
    wait_for(lambda: cluster.ask("actors") == "0", 60)


@pytest.mark.parametrize("outside", [False, True])
def test_a_run_survives_the_loss_of_its_driver_and_of_a_node(
    tmp_path: Path, cluster: Nodes, redis_url: str, outside: bool
) -> None:
    name, address = ("far-outside", cluster.client) if outside else ("far", cluster.address)
    folder = tmp_path / name
    arguments = flags(tmp_path, name, address, redis_url, actors__count=2)
    with tamiyo(tmp_path, "train", *arguments, **SECRET) as driver:
        driver.wait_for(lambda: updates(folder) >= 2, TIMEOUT_S)
        driver.end(number=signal.SIGKILL)
        at = updates(folder)
        wait_for(lambda: updates(folder) >= at + 3, 30)
    with tamiyo(tmp_path, "train", *arguments, **SECRET) as follower:  # the same command again
        follower.wait_for(lambda: "is already running: following it" in follower.out and "update" in follower.out)
        assert follower.end(20, signal.SIGINT) == 130
        assert f"tamiyo stop {name}" in follower.out
        assert follower.err == ""
    killed = time.monotonic()
    assert cluster.ask("lose") == cluster.ask("join") == "done"
    before = played(folder)
    wait_for(lambda: played(folder) - before, SLACK * TARGETS_S["node"])
    print(f"node: running again after {time.monotonic() - killed:.1f} s (target {TARGETS_S['node']:.0f} s)")
    stop(folder, cluster, address)
    assert PASSWORD not in (folder / "config.yaml").read_text()


def test_a_killed_supervisor_is_restarted(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    """It runs on the head node, so that the loss of another node does not affect it. Learner and actors die with it."""
    folder = tmp_path / "again"
    arguments = flags(tmp_path, "again", cluster.address, redis_url, actors__count=2)
    with tamiyo(tmp_path, "train", *arguments, **SECRET) as driver:
        driver.wait_for(lambda: updates(folder) >= 2, 90.0)
        assert cluster.ask("where Supervisor") == "head"
        os.kill(int(cluster.ask("process Supervisor")), signal.SIGKILL)
        killed, at = time.monotonic(), updates(folder)
        driver.wait_for(lambda: updates(folder) >= at + 3, 90.0)  # rows after the last checkpoint are removed
        print(f"supervisor: three updates {time.monotonic() - killed:.1f} s later")
        assert driver.end(20, signal.SIGINT) == 130
    stop(folder, cluster, cluster.address)


def test_errors_of_runs_on_clusters_are_one_line(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    for arguments, word in (
        (["--address", cluster.address], "no run 'nobody' is running at"),
        (["--address", "127.0.0.1:1", "--redis", redis_url], "no Ray cluster answers"),
    ):
        with tamiyo(tmp_path, "train", *small(tmp_path, "nobody"), *arguments) as command:
            assert command.wait(60) == 2
            (line,) = command.err.splitlines()
            assert line.startswith("tamiyo: error: ")
            assert word in line


def test_the_number_of_actors_follows_the_cluster(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    folder = tmp_path / "elastic"
    sizes = {"actors__count": "auto", "learner__batch_episodes": 8}
    arguments = flags(tmp_path, "elastic", cluster.address, redis_url, **sizes)
    with tamiyo(tmp_path, "train", *arguments, **SECRET) as run:

        def runs_on(nodes: int) -> None:
            run.wait_for(lambda: cluster.ask("places") == f"{nodes} {nodes}", TIMEOUT_S)

        runs_on(3)  # the fourth core is the learner's
        run.wait_for(lambda: len(played(folder)) >= 3, TIMEOUT_S)

        before = played(folder)
        assert cluster.ask("join") == "done"
        runs_on(4)
        run.wait_for(lambda: "actor-3" in {actor for actor, _ in played(folder) - before}, TIMEOUT_S)

        assert cluster.ask("lose") == "done"
        runs_on(3)
        run.wait_for(lambda: re.findall(r"actors (\d+/\d+)", run.out)[-1] == "3/3", TIMEOUT_S)  # none is missed
        at = updates(folder)
        run.wait_for(lambda: updates(folder) >= at + 3, TIMEOUT_S)

        before = played(folder)
        assert cluster.ask("join") == "done"
        runs_on(4)
        run.wait_for(lambda: len(played(folder) - before) > 0, TIMEOUT_S)
        assert run.end(60, signal.SIGINT) == 130
    stop(folder, cluster, cluster.address)
    seeds = [row["seed"] for row in rows(folder / "episodes.jsonl")]
    assert len(seeds) == len(set(seeds))


def test_a_run_from_outside_can_ship_its_code(
    tmp_path: Path, cluster: Nodes, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is a module of the working directory, which no machine of the cluster has."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "their_stripes.py").write_text(OWN_TASK)
    monkeypatch.chdir(home)
    root = tmp_path / "shared"
    # The shipped sources have a new path, so kernels would be compiled again; the tensor program needs none.
    task = {"env__tasks": "their_stripes:mine", "env__backend": "torch", "learner__updates": 3, "actors__count": 2}
    arguments = flags(root, "outside", cluster.client, redis_url, **task)
    with tamiyo(tmp_path, "train", *arguments, **SECRET) as run:
        assert run.wait(TIMEOUT_S) == 2
        assert "'their_stripes:mine' cannot be imported" in run.err
    with tamiyo(tmp_path, "train", *arguments, "--run.ship", "code", **SECRET) as run:
        assert run.wait(TIMEOUT_S) == 0, run.out + run.err
        assert run.err == ""
    assert (root / "outside" / "report.html").is_file()
    assert load_checkpoint(root / "outside").progress.update == 3
    assert PASSWORD not in (root / "outside" / "config.yaml").read_text()
    wait_for(lambda: cluster.ask("actors") == "0", 60)
