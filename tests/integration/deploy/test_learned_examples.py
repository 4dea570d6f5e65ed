"""The example environments are learned within stated numbers of steps."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.launching import running

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "env_id", "steps", "least"),
    [("catch", "Catch-v0", 150_000, 0.9), ("warehouse", "Warehouse-v0", 100_000, 0.7)],  # about twice what one run took
)
def test_an_example_is_learned(tmp_path: Path, module: str, env_id: str, steps: int, least: float) -> None:
    shutil.copy(EXAMPLES / f"{module}.py", tmp_path)
    flags = ["--env", f"{module}:{env_id}", "--total-steps", str(steps), "--stop-at-return", str(least)]
    tamiyo = ["env", "-C", str(tmp_path), sys.executable, "-m", "deploy.cli"]
    command = [*tamiyo, "train", *flags, "--run.name", "r", "--run.reference_episodes", "0"]
    with running(tmp_path, command, {}) as run:
        assert run.wait(850) == 0, run.err
        assert run.left() == []
    assert "the last 100 episodes returned" in run.out  # samples of the policy
    with running(tmp_path, [*tamiyo, "play", "runs/r", "--sampled"], {}) as play:
        assert play.wait() == 0, play.err
    (mean,) = re.findall(r": 100 episodes, mean return ([\d.]+) ", play.out)
    assert float(mean) >= least - 0.1  # of 100 other episodes
