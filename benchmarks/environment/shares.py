"""How the time of a fleet's epoch divides into its parts, measured by leaving out one part after the other.

This works for every backend, since it needs nothing from inside the fleet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from actors.env.episode.epoch import EpochPlan
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked.param_bank import RowOptimizer
from benchmarks.environment.growth import waits
from benchmarks.environment.rounds import epoch_s


def shares(fleet: SeedTrainingFleet, device: str, rounds: int) -> dict[str, Any]:
    """Return the percentage of each part. The optimizer is a part of both passes, and "-" if it cannot be timed: with
    the numba backend, and on a GPU, where its operations run later than they are called."""
    plans = [
        episode.plan_epoch(*episode.read(action)) for episode, action in zip(fleet.episodes, waits(fleet), strict=True)
    ]
    bare = [replace(o, subsets=o.subsets[:1]) for o in plans]
    unshadowed = [replace(o, training={}) for o in bare]
    short = [replace(o, rows=o.rows[:1]) for o in unshadowed]
    watch = Stopwatch()
    whole = planned = no_ablations = no_shadow = one_step = float("inf")
    for _ in range(rounds):
        whole = min(whole, epoch_s(fleet, device))
        with watch:
            planned = min(planned, _run(fleet, plans, device))
        no_ablations = min(no_ablations, _run(fleet, bare, device))
        no_shadow = min(no_shadow, _run(fleet, unshadowed, device))
        one_step = min(one_step, _run(fleet, short, device))
    steps = len(plans[0].rows)
    main = (no_shadow - one_step) * steps / (steps - 1)
    parts = {
        "main pass": main,
        "shadow pass": no_ablations - no_shadow,
        "ablations": planned - no_ablations,
        "validation, set-up": no_shadow - main,
        "Python around": whole - planned,
    }
    percent = {name: max(0.0, 100.0 * seconds / whole) for name, seconds in parts.items()}
    timed = watch.spent_s and device == "cpu"
    return percent | {"optimizer therein": 100.0 * watch.spent_s / rounds / whole if timed else "-"}


def _run(fleet: SeedTrainingFleet, plans: Sequence[EpochPlan], device: str) -> float:
    """Return the seconds that the networks take for an epoch."""

    class Planned:
        num_envs = fleet.num_envs
        spaces = fleet.spaces

        def step(self, actions: object) -> None:
            fleet.networks.run_epoch(plans)

    return epoch_s(Planned(), device)  # type: ignore[arg-type]


class Stopwatch:
    """Time spent in the AdamW of the torch backend; 0 for the numba backend."""

    spent_s = 0.0

    def __enter__(self) -> None:
        self.plain: Callable[..., None] = RowOptimizer.step

        def timed(*args: Any) -> None:
            start = time.process_time()
            self.plain(*args)
            self.spent_s += time.process_time() - start

        RowOptimizer.step = timed  # type: ignore[assignment,method-assign]

    def __exit__(self, *_: object) -> None:
        RowOptimizer.step = self.plain  # type: ignore[method-assign]
