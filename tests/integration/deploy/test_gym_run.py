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
