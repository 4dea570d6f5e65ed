"""Where a fleet's epoch goes, by leaving out one part after the other of what it is ordered to do.

That needs nothing from inside the fleet, so it reads the same whether its program is tensors or machine code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from actors.env.host_episode import EpochPlan
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked.param_bank import RowOptimizer
from benchmarks.environment.growth import waits
from benchmarks.environment.rounds import epoch_s


def shares(fleet: SeedTrainingFleet, device: str, rounds: int) -> dict[str, Any]:
    """Percent of an epoch by part; the optimizer's is of the main and the shadow pass, where it can be seen."""
    orders = [episode.plan_epoch(action)[0] for episode, action in zip(fleet.episodes, waits(fleet), strict=True)]
    bare = [replace(o, subsets=o.subsets[:1]) for o in orders]
    unshadowed = [replace(o, training={}) for o in bare]
    short = [replace(o, rows=o.rows[:1]) for o in unshadowed]
    watch = Stopwatch()
    whole = ordered = no_ablations = no_shadow = one_step = float("inf")
    for _ in range(rounds):
        whole = min(whole, epoch_s(fleet, device))
        with watch:
            ordered = min(ordered, _run(fleet, orders, device))
        no_ablations = min(no_ablations, _run(fleet, bare, device))
        no_shadow = min(no_shadow, _run(fleet, unshadowed, device))
        one_step = min(one_step, _run(fleet, short, device))
    steps = len(orders[0].rows)
    main = (no_shadow - one_step) * steps / (steps - 1)
    parts = {
        "main pass": main,
        "shadow pass": no_ablations - no_shadow,
        "ablations": ordered - no_ablations,
        "validation, set-up": no_shadow - main,
        "Python around": whole - ordered,
    }
    percent = {name: max(0.0, 100.0 * seconds / whole) for name, seconds in parts.items()}
    return percent | {"optimizer therein": 100.0 * watch.spent_s / rounds / whole if watch.spent_s else "-"}


def _run(fleet: SeedTrainingFleet, orders: Sequence[EpochPlan], device: str) -> float:
    """Seconds of the networks' part of an epoch."""

    class Ordered:
        num_envs = fleet.num_envs
        spaces = fleet.spaces

        def step(self, actions: object) -> None:
            fleet.networks.run_epoch(orders)

    return epoch_s(Ordered(), device)  # type: ignore[arg-type]


class Stopwatch:
    """Time in the stacks' AdamW; 0 where an epoch is machine code as a whole, or not awaited on a GPU."""

    spent_s = 0.0

    def __enter__(self) -> None:
        self.plain: Callable[..., None] = RowOptimizer.adam

        def timed(*args: Any) -> None:
            start = time.process_time()
            self.plain(*args)
            self.spent_s += time.process_time() - start

        RowOptimizer.adam = timed  # type: ignore[assignment,method-assign]

    def __exit__(self, *_: object) -> None:
        RowOptimizer.adam = self.plain  # type: ignore[method-assign]
