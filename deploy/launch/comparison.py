"""What a trained policy is compared with: the same seeds, played by others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.types.episode import EndReason
from actors.workers.rollout_worker import PolicyName
from actors.workers.worker_pool import WorkerPool


def compare(fleet: WorkerPool, run_dir: Path, episodes: int, hosts: bool, stop: Callable[[], bool]) -> None:
    """Play seeds of the last fifth again with the policies to compare with, and leave what the report needs in the
    folder. `hosts`: seed hosts were trained on, and there is a never-grow. Ends early when told to stop."""
    rows = [json.loads(line) for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["end_reason"] != EndReason.CUT]  # a segment is no whole episode
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
        played[player] = fleet.play(player, seeds)
    references = {
        "seeds": seeds,
        "tasks": [row["task_id"] for row in chosen],
        "learned": [row["return"] for row in chosen],
        **{name: [t["return"] for t in timelines] for name, timelines in played.items()},
    }
    (run_dir / "references.json").write_text(json.dumps(references))
    if hosts:
        _draw_episode(fleet, run_dir, chosen)


def _draw_episode(fleet: WorkerPool, run_dir: Path, chosen: list[dict[str, Any]]) -> None:
    """The episode of the report: one of the task on which the policy grows most."""
    growth: dict[str, list[float]] = {}
    for row in chosen:
        growth.setdefault(row["task_id"], []).append(row["growth_ratio"])
    task = max(growth, key=lambda t: sum(growth[t]) / len(growth[t]))
    seed = next(int(row["seed"]) for row in reversed(chosen) if row["task_id"] == task)
    timeline = fleet.play("learned", [seed], True)[0]
    never = fleet.play("never_grow", [seed])[0]
    (run_dir / "timeline.json").write_text(json.dumps(timeline | {"never_grow_accuracy": never["accuracy"]}))
