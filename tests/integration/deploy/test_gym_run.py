"""`tamiyo train --env`: environments that end their process or take long, evaluations by the actors, and `external`:
programs of their own play CartPole, in Python and in Node. `test_counting_runs` has others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.config.flags import parse
from deploy.config.yaml import to_yaml
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.run.checkpoint import load_checkpoint
from tests.support.launching import rows, running, tamiyo
from tests.support.serving.node import ROOT, install

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
SMALL = {"learner__updates": 4, "learner__batch_steps": 256, "gym__max_segment_steps": 16, "run__reference_episodes": 6}


def run_of(folder: Path, name: str, **changes: object) -> list[str]:
    flags = {"run__root": folder, "run__name": "r", "learner__batch_episodes": 4, "actors__count": 1} | SMALL | changes
    named = [part for key, value in flags.items() for part in (f"--{key.replace('__', '.')}", str(value))]
    return ["--env", f"tests.support.env.gym_envs:tests/{name}-v0", *named]


@pytest.mark.long
def test_an_environment_that_ends_its_process_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "Leaving")) as run:
        assert run.wait(280) == 2
        assert run.left() == []
    assert "actor-0 died 8 times in a row: its environment ends its own process" in run.err
    assert "what actor-0 printed last:" in run.out
    assert "the licence has expired" in run.out


@pytest.mark.long
def test_resets_that_take_too_long_together_are_no_hang_but_a_single_one_is(tmp_path: Path) -> None:
    """Eight environments need 16 s for their first resets."""
    slow = {"actors__hang_s": 8, "learner__updates": 1, "gym__kwargs": "seconds=2"}
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "SlowReset", **slow)) as run:
        run.wait_for(lambda: bool(rows(tmp_path / "r" / "metrics.jsonl")), 120.0)
        assert "has hung" not in run.out
    endless = slow | {"gym__kwargs": "seconds=99", "run__name": "s"}
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "SlowReset", **endless)) as run:
        assert run.wait(120) == 2
        assert run.left() == []
    assert run.out.count("actor-0 has hung for 8 s; it is killed and restarted") == 3
    assert "in reset" in run.out
    assert "actor-0 hung 3 times in a row: raise actors.hang_s if a single reset or step" in run.err


@pytest.mark.long
def test_an_actor_evaluates_the_policy_while_it_trains(tmp_path: Path) -> None:
    flags = run_of(tmp_path, "Scripted", run__evaluate_every=1, learner__updates=40)
    with tamiyo(tmp_path, "train", *flags) as run:
        assert run.wait(220) == 0, run.err
        assert run.left() == []
    found = rows(tmp_path / "r" / "evaluations.jsonl")
    assert len(found) >= 2
    assert found[-1]["update"] == 40  # the last policy
    best = max(found, key=lambda row: (row["return_mean"], row["update"]))
    assert load_checkpoint(tmp_path / "r" / "best.safetensors").progress.update == best["update"]
    assert f"the best policy is that of update {best['update']}" in run.out


# Programs of their own


CLIENT = """
import sys, gymnasium, tamiyo
tamiyo.serve_env(gymnasium.make("CartPole-v1"), sys.argv[1])
"""


def external(folder: Path, **changes: object) -> list[str]:
    """Settings of a run with the spaces of CartPole, whose endpoint is the socket `e` in the folder."""
    spaces = folder / "spaces.json"
    spaces.write_text('{"observation_size": 4, "actions": [2]}')
    settings: dict[str, object] = {"env": "external", "spaces": spaces, "run.root": folder, "learner.batch_episodes": 4}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    settings["external.listen"] = f"unix:{folder / 'e'}"
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


@pytest.mark.long
def test_programs_in_python_and_node_train_a_run(tmp_path: Path) -> None:
    node = install(tmp_path, "@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1")
    shutil.copy(ROOT / "examples/external/cartpole.js", node)
    address, short = f"unix:{tmp_path / 'e'}", {"external__max_segment_steps": 16}
    command = external(tmp_path, run__name="cart", learner__updates=3, learner__batch_steps=256, **short)
    script = ["node", str(node / "cartpole.js"), str(ROOT / "proto"), address, "100000"]
    with tamiyo(tmp_path, "train", *command) as run:
        run.wait_for((tmp_path / "e").exists, 120)
        with running(tmp_path, script, {}) as in_node, running(tmp_path, [sys.executable, "-c", CLIENT, address], {}):
            assert run.wait(200) == 0, run.out + run.err
            played = [json.loads(line) for line in in_node.out.splitlines()]
        assert run.err == ""
        assert run.left() == []
    folder = tmp_path / "cart"
    episodes, metrics = rows(folder / "episodes.jsonl"), rows(folder / "metrics.jsonl")
    assert [m["update"] for m in metrics] == [1, 2, 3]
    for m in metrics:
        assert m.get("ratio_error", 0.0) < 1e-4
        assert m["dead_lettered"] == 0
    assert {e["end_reason"] for e in episodes} == {"environment", "cut"}
    assert {e["episode_id"].split("/")[1] for e in episodes} == {"external"}
    assert len(played) > 1
    assert all(p["return"] == p["steps"] >= 8 for p in played)
    assert json.loads(load_checkpoint(folder).weights.architecture)["spaces"]["base_size"] == 4
    assert (folder / "report.html").exists()


def test_the_endpoint_stops_when_its_parent_ends(tmp_path: Path) -> None:
    config = parse("train", external(tmp_path, run__name="x")).config
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "deploy.launch.endpoint", str(tmp_path)]
    with (
        EmbeddedRedis() as server,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        process.stdin.write(f"{server.url}\n".encode())
        process.stdin.flush()
        assert b"environments play at" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(30) == 0
        assert process.stdout.read() == b"endpoint: stopped; 0 episodes unsent\n"
