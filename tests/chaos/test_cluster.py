"""A run on a three-node cluster: the driver is killed, followed again, a node is lost, and the run is told to stop."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.embedded_redis import find_server
from learner.checkpoint import load_checkpoint
from tests.chaos.harness import SLACK, TARGETS_S
from tests.chaos.nodes import ANSWER
from tests.launching import rows, small, tamiyo

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
PASSWORD = "a-word-for-tests"
SECURITY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}


class Nodes:
    """See `tests.chaos.nodes`: a process of its own, as Ray reads its security settings once."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nodes"],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        said = next(line for line in self.process.stdout if line.startswith(ANSWER))
        return said.removeprefix(ANSWER).strip()

    def ask(self, what: str) -> str:
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)
        return self.read()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """A head with room for the learner and one actor, and two nodes with room for an actor each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECURITY.items():
            patch.setenv(name, value)
        nodes = Nodes(SECURITY)
        yield nodes
        nodes.process.communicate("", timeout=30)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    folder = str(tmp_path_factory.mktemp("server"))
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD, "--save", "", "--dir", folder]
    with subprocess.Popen([str(find_server()), *settings], stdout=subprocess.DEVNULL) as process:
        yield f"redis://127.0.0.1:{port}/0"
        process.kill()


def flags(root: Path, name: str, cluster: Nodes, url: str, **changes: object) -> list[str]:
    return [
        *small(root, name, learner__updates=1_000_000, **changes),
        *("--address", cluster.address, "--redis", url),
    ]


def test_the_run_outlives_its_driver_and_a_node(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    secret = {"TAMIYO_REDIS_PASSWORD": PASSWORD}
    folder = tmp_path / "far"
    metrics = folder / "metrics.jsonl"
    arguments = flags(tmp_path, "far", cluster, redis_url, actors__count=2)
    with tamiyo(tmp_path, "train", *arguments, **secret) as driver:
        driver.wait_for(lambda: len(rows(metrics)) >= 2, 90.0)
        driver.process.send_signal(signal.SIGKILL)
        driver.wait()
        at = len(rows(metrics))
        wait_until(lambda: len(rows(metrics)) >= at + 3, 30)

    with tamiyo(tmp_path, "train", *arguments, **secret) as follower:  # the same command again
        follower.wait_for(lambda: "is under way: following it" in follower.out and "update" in follower.out)
        follower.process.send_signal(signal.SIGINT)
        assert follower.wait(20) == 130
        assert "tamiyo stop far" in follower.out
        assert follower.err == ""

    killed = time.monotonic()
    assert cluster.ask("lose") == cluster.ask("join") == "done"
    incarnations = {tuple(r["episode_id"].split("/")[1:3]) for r in rows(folder / "episodes.jsonl")}

    def replaced() -> bool:
        return bool({tuple(r["episode_id"].split("/")[1:3]) for r in rows(folder / "episodes.jsonl")} - incarnations)

    wait_until(replaced, SLACK * TARGETS_S["node"])
    print(f"node: running again after {time.monotonic() - killed:.1f} s (target {TARGETS_S['node']:.0f} s)")

    with tamiyo(tmp_path, "stop", "far", "--address", cluster.address) as stop:
        assert stop.wait(60) == 0, stop.out + stop.err
        assert stop.err == ""
    ids = [row["episode_id"] for row in rows(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids)) == load_checkpoint(folder).progress.episodes_trained
    assert PASSWORD not in (folder / "config.yaml").read_text()
    wait_until(lambda: cluster.ask("actors") == "0", 15)


def test_what_a_cluster_cannot_do_is_told_in_one_line(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    for arguments, word in (
        (["--address", cluster.address], "needs run.redis"),
        (["--address", "127.0.0.1:1", "--redis", redis_url], "no Ray cluster answers"),
        (["--address", cluster.address, "--redis", redis_url, "--attach"], "no run 'nobody' is under way"),
    ):
        with tamiyo(tmp_path, "train", *small(tmp_path, "nobody"), *arguments) as command:
            assert command.wait(60) == 2
            (line,) = command.err.splitlines()
            assert line.startswith("tamiyo: error: ")
            assert word in line


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
