"""Compare a trained policy with baselines on the same seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.types.episode import REPORTED_TASK, EndReason
from actors.workers.rollout_worker import PolicyName
from actors.workers.worker_pool import WorkerPool
from learner.run.checkpoint import write_durably


def compare(pool: WorkerPool, run_dir: Path, episodes: int, hosts: bool, stop: Callable[[], bool]) -> None:
    """Replay seeds of the last fifth of a run with the baselines, and write the results for the report.

    The never-grow baseline needs seed hosts (`hosts`). Returns early if `stop()` becomes true.
    """
    rows = [json.loads(line) for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
    # Leave out segments, which are not whole episodes, and runs of users' own models, which cannot be played here.
    rows = [row for row in rows if row["end_reason"] != EndReason.CUT and row["task_id"] != REPORTED_TASK]
    if not rows:
        return
    fifth = rows[-max(1, len(rows) // 5) :]
    step = max(1, len(fifth) // episodes)
    chosen = fifth[::-1][::step][:episodes][::-1]
    seeds = [int(row["seed"]) for row in chosen]
    played: dict[str, list[dict[str, Any]]] = {}
    baselines: tuple[PolicyName, ...] = ("random", "never_grow") if hosts else ("random",)
    for player in baselines:
        if stop():
            return
        played[player] = pool.play(player, seeds)
    references = {
        "seeds": seeds,
        "tasks": [row["task_id"] for row in chosen],
        "learned": [row["return"] for row in chosen],
        **{name: [t["return"] for t in timelines] for name, timelines in played.items()},
    }
    write_durably(run_dir / "references.json", json.dumps(references).encode(), replace=True)
    if hosts:
        _draw_episode(pool, run_dir, chosen)


def _draw_episode(pool: WorkerPool, run_dir: Path, chosen: list[dict[str, Any]]) -> None:
    """Write the example episode of the report, from the task on which the policy grows most."""
    growth: dict[str, list[float]] = {}
    for row in chosen:
        growth.setdefault(row["task_id"], []).append(row["growth_ratio"])
    task = max(growth, key=lambda t: sum(growth[t]) / len(growth[t]))
    seed = next(int(row["seed"]) for row in reversed(chosen) if row["task_id"] == task)
    timeline = pool.play("learned", [seed], True)[0]
    never = pool.play("never_grow", [seed])[0]
    episode = json.dumps(timeline | {"never_grow_accuracy": never["accuracy"]})
    write_durably(run_dir / "timeline.json", episode.encode(), replace=True)
