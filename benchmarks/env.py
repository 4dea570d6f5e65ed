"""Seed-training environments: inner SGD steps and decisions per second, the fleet against a loop over hosts.

    python -m benchmarks.env [--quick] [--json FILE]

The loop is the one-environment reference, itself tuned: fused AdamW, active seeds only. Both sides run the same epochs
of the same hosts in one process on one thread: three slots, width 16, minibatches of 64, 16 of them an epoch, every
mechanic on. With three active seeds, two are held in the host and one is in training, so that the shadow pass and all
eight ablations are part of every epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.actions import Op
from actors.config import EnvConfig
from actors.env.blueprints import MLP_BLUEPRINTS
from actors.env.fleet import Fleet, ReferenceFleet
from actors.env.seed_fleet import SeedTrainingFleet
from benchmarks.form import Target, arguments, publish

CONFIG = EnvConfig(tasks=("benchmarks.wide_task:factory",), horizon_epochs=60, budget_ratio=20.0)
SLOTS = 3
NAMES = [b.name for b in MLP_BLUEPRINTS]
# Slots 0 and 1 go on to be held, slot 2 stays in training.
GROWTH = [(op, s) for s in range(SLOTS) for op in (Op.GERMINATE, Op.ADVANCE, Op.ADVANCE)][:-1]


def _actions(envs: int, epoch: int, blueprints: NDArray[np.int64] | None) -> NDArray[np.int64]:
    actions = np.zeros((envs, 6), dtype=np.int64)
    if blueprints is not None and epoch < len(GROWTH):
        actions[:, 0], actions[:, 1] = GROWTH[epoch]
        actions[:, 2], actions[:, 4] = blueprints, 2  # alpha target 1.0, at once
    return actions


def measure(make: Callable[[EnvConfig, int, int], Fleet], envs: int, mix: str, epochs: int) -> float:
    """Seconds of one epoch of `envs` hosts, once their seeds are where they should be."""
    if mix == "none":
        blueprints = None
    elif mix == "all kinds":
        blueprints = 1 + np.arange(envs) % (len(NAMES) - 1)
    else:
        blueprints = np.full(envs, NAMES.index(mix))
    fleet = make(CONFIG, envs, 0)
    fleet.reset(range(envs))
    warm = len(GROWTH) + 1
    for epoch in range(warm):
        fleet.step(_actions(envs, epoch, blueprints))
    start = time.perf_counter()
    for epoch in range(warm, warm + epochs):
        fleet.step(_actions(envs, epoch, blueprints))
    return (time.perf_counter() - start) / epochs


def main() -> None:
    args = arguments("env", __doc__.splitlines()[0])
    sizes = (1, 4, 16) if args.quick else (1, 4, 16, 64, 256)
    epochs = 1 if args.quick else 4
    rows: list[dict[str, Any]] = []
    targets = []
    for mix in ("none", "dense", "all kinds"):
        loop = min(measure(ReferenceFleet, 4, mix, epochs) / 4 for _ in range(1 if args.quick else 3))
        seeds = "0" if mix == "none" else f"3 {mix}"
        rows.append(_row("loop", 4, seeds, 4 * loop, loop))
        for envs in sizes:
            seconds = measure(SeedTrainingFleet, envs, mix, epochs)
            rows.append(_row("fleet", envs, seeds, seconds, loop))
            if envs == 64 and mix == "dense":
                targets.append(Target("MLP fleet over loop, E = 64, 3 active seeds", loop * envs / seconds, 6.0))
                rate = envs * CONFIG.inner_steps / seconds
                targets.append(Target("MLP fleet, inner steps/s, E = 64, 3 active seeds", rate, 8000.0))
    publish(rows, targets, args.json)


def _row(kind: str, envs: int, seeds: str, seconds: float, loop: float) -> dict[str, Any]:
    return {
        "host": "mlp 16",
        "form": kind,
        "envs": envs,
        "seeds": seeds,
        "inner steps/s": envs * CONFIG.inner_steps / seconds,
        "decisions/s": envs / seconds,
        "over loop": loop * envs / seconds,
    }


if __name__ == "__main__":
    main()
