"""Train, watch and use a policy from Python.

    python examples/train_cartpole.py

Settings are given by name, as in a settings file; docs/reference/configuration.md lists them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tamiyo


def on_update(metrics: dict[str, float]) -> bool:
    """Print a line for each update, and stop as soon as the policy is good enough."""
    print(f"step {metrics['env_steps']:.0f}: return {metrics.get('return_mean', float('nan')):.1f}")
    return metrics.get("return_mean", 0.0) >= 450


def main(root: str = "runs", steps: int = 150_000) -> None:
    settings = {
        "gym": {"id": "CartPole-v1"},
        "run": {"root": root, "name": "cartpole", "reference_episodes": 0},
        "learner": {"total_steps": steps, "lr": 1e-3, "batch_steps": 2048, "target_kl": 0.05},
    }
    tamiyo.train(settings, on_update=on_update)

    policy = tamiyo.load_policy(Path(root) / "cartpole")
    env = policy.make_env()
    obs, info = env.reset(seed=1)
    policy.reset()  # at the start of each episode
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, info = env.step(policy.act(obs, info.get("action_mask")))
        total, over = total + float(reward), terminated or truncated
    print(f"one episode returned {total:.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
