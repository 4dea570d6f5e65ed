"""`tamiyo train --env`, from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from learner.run.checkpoint import load_checkpoint
from tests.support.launching import rows, tamiyo

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]
SMALL = {
    "--learner.updates": "4",
    "--learner.batch_episodes": "4",
    "--learner.batch_steps": "256",
    "--gym.max_segment_steps": "16",
    "--actors.count": "1",
    "--run.reference_episodes": "6",
}


@pytest.mark.timeout(240)
def test_cart_pole_from_the_command_line_to_the_report(tmp_path: Path) -> None:
    flags = [part for pair in SMALL.items() for part in pair]
    command = ["--env", "CartPole-v1", "--run.root", str(tmp_path), "--run.name", "cart", *flags]
    with tamiyo(tmp_path, "train", *command) as run:
        assert run.wait(200) == 0, run.err
        assert run.err == ""
        assert run.left() == []
    folder = tmp_path / "cart"
    assert "never-grow" not in run.out
    assert " points" not in run.out
    assert "report:" in run.out
    assert yaml.safe_load((folder / "config.yaml").read_text())["gym"]["id"] == "CartPole-v1"
    metrics, episodes = rows(folder / "metrics.jsonl"), rows(folder / "episodes.jsonl")
    assert [m["update"] for m in metrics] == [1, 2, 3, 4]
    for m in metrics:
        batch = [e for e in episodes if e["update"] == m["update"]]
        assert sum(e["steps"] for e in batch) >= 256
        assert m.get("ratio_error", 0.0) < 1e-4
        assert m["dead_lettered"] == 0
    assert {e["end_reason"] for e in episodes} == {"environment", "cut"}
    assert max(e["steps"] for e in episodes) == 16
    whole = [e for e in episodes if e["end_reason"] == "environment"]
    assert all(e["return"] >= e["steps"] for e in whole)  # 1 a step, earlier segments' included
    assert any(e["return"] > 16 for e in whole)
    weights = load_checkpoint(folder).weights
    assert json.loads(weights.architecture)["spaces"]["base_size"] == 4
    references = json.loads((folder / "references.json").read_text())
    assert set(references) == {"seeds", "tasks", "cut_at", "learned", "random"}
    assert len(references["learned"]) == len(references["random"]) == 6
    assert references["cut_at"] == 0
    assert min(references["random"]) >= 8  # nothing falls sooner
    page = (folder / "report.html").read_text()
    assert "on CartPole-v1" in page


def run_of(tmp_path: Path, name: str, **changes: str) -> list[str]:
    environment = {
        "--env": f"tests.support.env.gym_envs:tests/{name}-v0",
        "--run.root": str(tmp_path),
        "--run.name": "r",
    }
    flags = environment | SMALL | {f"--{key.replace('__', '.')}": value for key, value in changes.items()}
    return [part for pair in flags.items() for part in pair]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_environment_that_ends_its_process_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "Leaving")) as run:
        assert run.wait(280) == 2
        assert run.left() == []
    assert "actor-0 died 8 times in a row: its environment ends its own process" in run.err
    assert "what actor-0 printed last:" in run.out
    assert "the licence has expired" in run.out


@pytest.mark.long
@pytest.mark.timeout(240)
def test_resets_that_take_too_long_together_are_no_hang_but_a_single_one_is(tmp_path: Path) -> None:
    """Eight environments need 16 s for their first resets."""
    slow = {"actors__hang_s": "8", "learner__updates": "1", "gym__kwargs": "seconds=2"}
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "SlowReset", **slow)) as run:
        run.wait_for(lambda: bool(rows(tmp_path / "r" / "metrics.jsonl")), 120.0)
        assert "has hung" not in run.out
    with tamiyo(
        tmp_path, "train", *run_of(tmp_path, "SlowReset", **slow | {"gym__kwargs": "seconds=99", "run__name": "s"})
    ) as run:
        assert run.wait(120) == 2
        assert run.left() == []
    assert run.out.count("actor-0 has hung for 8 s; it is killed and restarted") == 3
    assert "in reset" in run.out
    assert "actor-0 hung 3 times in a row: raise actors.hang_s if a single reset or step" in run.err
