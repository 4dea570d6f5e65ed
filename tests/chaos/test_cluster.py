"""Runs on a three-node cluster: the driver or a node is lost, another driver follows, and the run is stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.run.checkpoint import load_checkpoint
from tests.support.chaos.clusters import PASSWORD, Nodes, flags, server_with_password, three_nodes, wait_until
from tests.support.chaos.harness import SLACK, TARGETS_S
from tests.support.launching import rows, small, tamiyo

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with three_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server_with_password(tmp_path_factory.mktemp("server")) as url:
        yield url


def test_a_run_survives_the_loss_of_its_driver_and_of_a_node(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    secret = {"TAMIYO_REDIS_PASSWORD": PASSWORD}
    folder = tmp_path / "far"
    metrics = folder / "metrics.jsonl"
    arguments = flags(tmp_path, "far", cluster.address, redis_url, actors__count=2)
    with tamiyo(tmp_path, "train", *arguments, **secret) as driver:
        driver.wait_for(lambda: len(rows(metrics)) >= 2, 90.0)
        driver.process.send_signal(signal.SIGKILL)
        driver.wait()
        at = len(rows(metrics))
        wait_until(lambda: len(rows(metrics)) >= at + 3, 30)

    with tamiyo(tmp_path, "train", *arguments, **secret) as follower:  # the same command again
        follower.wait_for(lambda: "is already running: following it" in follower.out and "update" in follower.out)
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


def test_a_killed_supervisor_is_restarted(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    """It runs on the head node, so that the loss of another node does not affect it. Learner and actors die with it."""
    secret = {"TAMIYO_REDIS_PASSWORD": PASSWORD}
    folder = tmp_path / "again"
    metrics = folder / "metrics.jsonl"
    with tamiyo(
        tmp_path, "train", *flags(tmp_path, "again", cluster.address, redis_url, actors__count=2), **secret
    ) as driver:
        driver.wait_for(lambda: len(rows(metrics)) >= 2, 90.0)
        assert cluster.ask("where Supervisor") == "head"
        os.kill(int(cluster.ask("process Supervisor")), signal.SIGKILL)
        killed, at = time.monotonic(), len(rows(metrics))
        driver.wait_for(lambda: len(rows(metrics)) >= at + 3, 90.0)  # rows after the last checkpoint are removed
        print(f"supervisor: three updates {time.monotonic() - killed:.1f} s later")
        assert driver.process.poll() is None, driver.out + driver.err
        driver.process.send_signal(signal.SIGINT)
        assert driver.wait(20) == 130
    with tamiyo(tmp_path, "stop", "again", "--address", cluster.address) as stop:
        assert stop.wait(60) == 0, stop.out + stop.err
    ids = [row["episode_id"] for row in rows(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids)) == load_checkpoint(folder).progress.episodes_trained
    wait_until(lambda: cluster.ask("actors") == "0", 15)


def test_errors_of_runs_on_clusters_are_one_line(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    for arguments, word in (
        (["--address", cluster.address], "needs run.redis"),
        (["--address", "127.0.0.1:1", "--redis", redis_url], "no Ray cluster answers"),
        (["--address", cluster.address, "--redis", redis_url, "--attach"], "no run 'nobody' is running"),
    ):
        with tamiyo(tmp_path, "train", *small(tmp_path, "nobody"), *arguments) as command:
            assert command.wait(60) == 2
            (line,) = command.err.splitlines()
            assert line.startswith("tamiyo: error: ")
            assert word in line
