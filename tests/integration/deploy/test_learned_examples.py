"""The example environments are learned within stated numbers of steps."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import tamiyo
from tests.support.launching import running

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "env_id", "steps", "least"),
    [("catch", "Catch-v0", 150_000, 0.9), ("warehouse", "Warehouse-v0", 100_000, 0.7)],  # about twice what one run took
)
def test_an_example_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, env_id: str, steps: int, least: float
) -> None:
    shutil.copy(EXAMPLES / f"{module}.py", tmp_path)
    flags = ["--env", f"{module}:{env_id}", "--total-steps", str(steps), "--stop-at-return", str(least)]
    command = [sys.executable, "-m", "deploy.cli", "train", *flags, "--run.name", "r", "--run.reference_episodes", "0"]
    with running(tmp_path, ["env", "-C", str(tmp_path), *command], {}) as run:
        assert run.wait(850) == 0, run.err
        assert run.left() == []
    assert "the last 100 episodes returned" in run.out  # samples of the policy

    monkeypatch.syspath_prepend(str(EXAMPLES))
    importlib.import_module(module)
    env, policy, returns = gymnasium.make(env_id), tamiyo.load_policy(tmp_path / "runs" / "r"), list[float]()
    for seed in range(100):
        (obs, info), total, over = env.reset(seed=seed), 0.0, False
        policy.reset(seed)
        while not over:
            action = policy.act(obs, info.get("action_mask"), deterministic=False)
            obs, reward, terminated, truncated, info = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert np.mean(returns) >= least - 0.1  # of 100 other episodes
