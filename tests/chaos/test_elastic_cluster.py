"""Runs that adapt to their cluster, with an actor on every free core, and runs submitted from outside with ray://."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.run.checkpoint import load_checkpoint
from tests.support.chaos.clusters import PASSWORD, Nodes, flags, server_with_password, three_nodes, wait_until
from tests.support.launching import rows, tamiyo

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
TIMEOUT_S = 300.0  # the tests share a busy machine
SECRET = {"TAMIYO_REDIS_PASSWORD": PASSWORD}
OWN_TASK = """
import numpy as np
from actors.env.tasks.families.planar import {factory}

def mine(rng: np.random.Generator):
    return {factory}(rng)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with three_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server_with_password(tmp_path_factory.mktemp("server")) as url:
        yield url


def played(folder: Path) -> set[tuple[str, str]]:
    """(actor, incarnation) of every episode that was trained on."""
    ids = [row["episode_id"].split("/") for row in rows(folder / "episodes.jsonl")]
    return {(actor, incarnation) for _, actor, incarnation, _ in ids}


def test_the_number_of_actors_follows_the_cluster(tmp_path: Path, cluster: Nodes, redis_url: str) -> None:
    folder = tmp_path / "elastic"
    sizes = {"actors__count": "auto", "learner__batch_episodes": 8}
    with tamiyo(tmp_path, "train", *flags(tmp_path, "elastic", cluster.address, redis_url, **sizes), **SECRET) as run:
        run.wait_for(lambda: cluster.ask("places") == "3 3", TIMEOUT_S)  # the fourth core is the learner's
        run.wait_for(lambda: len(played(folder)) >= 3, TIMEOUT_S)

        before = played(folder)
        assert cluster.ask("join") == "done"
        run.wait_for(lambda: cluster.ask("places") == "4 4", TIMEOUT_S)
        run.wait_for(lambda: "actor-3" in {actor for actor, _ in played(folder) - before}, TIMEOUT_S)

        assert cluster.ask("lose") == "done"
        run.wait_for(lambda: cluster.ask("places") == "3 3", TIMEOUT_S)
        run.wait_for(
            lambda: re.findall(r"actors (\d+/\d+)", run.out)[-1] == "3/3", TIMEOUT_S
        )  # the lost one is no longer expected
        at = len(rows(folder / "metrics.jsonl"))
        run.wait_for(lambda: len(rows(folder / "metrics.jsonl")) >= at + 3, TIMEOUT_S)

        before = played(folder)
        assert cluster.ask("join") == "done"
        run.wait_for(lambda: cluster.ask("places") == "4 4", TIMEOUT_S)
        run.wait_for(lambda: len(played(folder) - before) > 0, TIMEOUT_S)
        run.process.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    with tamiyo(tmp_path, "stop", "elastic", "--address", cluster.address) as stop:
        assert stop.wait(TIMEOUT_S) == 0, stop.out + stop.err
    episodes = rows(folder / "episodes.jsonl")
    ids = [row["episode_id"] for row in episodes]
    assert len(ids) == len(set(ids)) == load_checkpoint(folder).progress.episodes_trained
    seeds = [row["seed"] for row in episodes]
    assert len(seeds) == len(set(seeds)), "a restarted actor repeated its episodes"
    wait_until(lambda: cluster.ask("actors") == "0", 60)


def test_a_run_from_outside_can_ship_its_code(
    tmp_path: Path, cluster: Nodes, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is a module of the working directory, which no machine of the cluster has."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "their_stripes.py").write_text(OWN_TASK.format(factory="spirals"))
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
        assert "report.html" in run.out
        assert run.err == ""
    assert (root / "outside" / "report.html").is_file()
    assert load_checkpoint(root / "outside").progress.update == 3
    assert PASSWORD not in (root / "outside" / "config.yaml").read_text()
    wait_until(lambda: cluster.ask("actors") == "0", 60)


def test_a_run_survives_its_client_and_another_client_can_stop_it(
    tmp_path: Path, cluster: Nodes, redis_url: str
) -> None:
    metrics = tmp_path / "left" / "metrics.jsonl"
    with tamiyo(tmp_path, "train", *flags(tmp_path, "left", cluster.client, redis_url), **SECRET) as client:
        client.wait_for(lambda: len(rows(metrics)) >= 2, TIMEOUT_S)
        client.process.send_signal(signal.SIGKILL)
        client.wait()
        at = len(rows(metrics))
        wait_until(lambda: len(rows(metrics)) >= at + 3, TIMEOUT_S)
    with tamiyo(tmp_path, "stop", "left", "--address", cluster.client) as stop:
        assert stop.wait(TIMEOUT_S) == 0, stop.out + stop.err
        assert "stopped; the checkpoint is written" in stop.out
    wait_until(lambda: cluster.ask("actors") == "0", 60)
