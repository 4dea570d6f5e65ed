"""A short whole run on the GPU: hosts and learner, weights back to the actor, a checkpoint, and a restart from it.

    python -m benchmarks.gpu.whole_run [--quick] [--json FILE] [--device cpu|cuda]

It runs in one process, on an embedded Redis server and without Ray; the run with Ray is one of the `cuda` tests.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from actors.config import ActingConfig, ActorsConfig, EnvConfig
from benchmarks.form import Target, parser, publish
from benchmarks.learning.in_process import Run
from learner.config import LearnerConfig
from learner.run.checkpoint import load_checkpoint

MAX_SECONDS = 12.0  # of training, before and after the restart each


def main() -> None:
    known = parser("gpu.whole_run", (__doc__ or "").splitlines()[0])
    known.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where hosts and learner run")
    args = known.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        known.error("--device cuda: PyTorch finds no CUDA device on this machine")
    envs, horizon, inner_steps, updates = (4, 4, 2, 2) if args.quick else (64, 25, 16, 3)
    acting = ActingConfig(
        env=EnvConfig(device=args.device, backend="torch", horizon_epochs=horizon, inner_steps=inner_steps),
        actors=ActorsConfig(count=1, envs_per_actor=envs),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [
            train(acting, args.device, folder, "from the start", updates),
            train(acting, args.device, folder, "after a restart", 2 * updates),
        ]
        progress = load_checkpoint(folder).progress
        acted = [json.loads(line)["policy_version"] for line in (folder / "episodes.jsonl").read_text().splitlines()]
    rows = [row for row, _ in parts]
    history = [metrics for _, own in parts for metrics in own]
    errors = [m["ratio_error_limit"] / max(m["ratio_error"], 1e-12) for m in history if "ratio_error" in m]
    whole = sum(not metrics["skipped_steps"] for metrics in history)
    targets = [
        Target("updates in the newest checkpoint", float(progress.update), float(2 * updates)),
        Target("newest weights that were acted with", float(max(acted)), float(2 * updates - 2)),
        Target("limit of ratio_error / its largest", min(errors, default=0.0), 1.0),
        Target("share of updates without a skipped step", whole / len(history), 1.0),
    ]  # fmt: skip
    publish(rows, targets, args.json)


def train(
    acting: ActingConfig, device: Any, folder: Path, what: str, updates: int
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Train until `updates` updates are in `folder`. Return a row about it, and the metrics of each update."""
    envs = acting.actors.envs_per_actor
    config = LearnerConfig(device=device, updates=updates, batch_episodes=envs, max_seconds=MAX_SECONDS)
    began = time.perf_counter()
    run = Run(acting, config, folder, seed=0)
    run.train(10**9)
    taken = time.perf_counter() - began
    learning = sum(m["update_s"] for m in run.history)
    row = {
        "what": what,
        "hosts": envs,
        "updates": len(run.history),
        "episodes/s": len(run.history) * envs / taken,
        "s": taken,
        "of which in updates, %": 100 * learning / taken,
    }
    return row, run.history


if __name__ == "__main__":
    main()
