"""The never-grow twin: the same host on the same batches, left alone. Its accuracy is a baseline for the reward.

What the twin gains depends on the seed and on nothing that the policy does, so subtracting a share of it leaves the
expected gradient where it was, and takes the luck of tasks and initial weights out of the returns.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from actors.config import EnvConfig

Trajectory = tuple[float, ...]  # [horizon + 1] points of validation accuracy, the untrained host first

SHARES = Path(__file__).with_name("twin_shares.json")
"""Fitted by `python -m benchmarks.fit_twin` on every training family, with how it was done."""

UNFITTED = 1.0
"""The share for a task that is not in the table: the whole gain, which is what a policy that waits gains too."""

CAPACITY = 4096  # trajectories kept; a wave's seeds are asked for again only when an episode is played again


def twin_config(config: EnvConfig) -> EnvConfig:
    """What the twin is played under: the same host and data, paid in J."""
    return replace(config, reward="objective", reference="untrained", twin_coef=None, time_limit="terminated")


def padded(accuracies: Sequence[float], horizon_epochs: int) -> Trajectory:
    """A twin that the governor ended keeps the accuracy it was restored to."""
    return (*accuracies, *[accuracies[-1]] * (horizon_epochs + 1 - len(accuracies)))


def twin_coefficient(config: EnvConfig, task_id: str) -> float:
    return fitted_shares().get(task_id, UNFITTED) if config.twin_coef is None else config.twin_coef


@cache
def fitted_shares() -> dict[str, float]:
    """By training family."""
    return {name: row["share"] for name, row in json.loads(SHARES.read_text())["families"].items()}


def fit_coefficient(returns: Sequence[float], twin_gains: Sequence[float]) -> float:
    """The least-squares share c of var(J - c * gain): cov(J, gain) / var(gain); 0 for a twin that never varies."""
    gains = np.asarray(twin_gains, dtype=np.float64)
    variance = float(gains.var())
    return float(np.cov(np.asarray(returns, dtype=np.float64), gains, bias=True)[0, 1] / variance) if variance else 0.0


class TwinCache:
    """TwinCache of one (configuration, run seed), by episode seed; each is played once and remembered."""

    def __init__(self, play: Callable[[Sequence[int]], Sequence[Trajectory]]) -> None:
        """`play(seeds)` plays never-grow episodes."""
        self._play = play
        self._known: OrderedDict[int, Trajectory] = OrderedDict()

    def trajectories(self, seeds: Sequence[int]) -> list[Trajectory]:
        missing = [s for s in dict.fromkeys(seeds) if s not in self._known]
        if missing:
            self._known.update(zip(missing, self._play(missing), strict=True))
        for seed in seeds:
            self._known.move_to_end(seed)
        found = [self._known[seed] for seed in seeds]
        while len(self._known) > CAPACITY:
            self._known.popitem(last=False)
        return found
