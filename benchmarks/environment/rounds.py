"""Loop and fleet in turns, so that what else runs on the machine slows both."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from actors.env.fleet import Fleet
from benchmarks.environment.growth import waits


@dataclass(frozen=True)
class Cell:
    """Seconds of one environment's epoch, the best of its rounds, and how much longer the loop takes for it."""

    loop_s: float
    fleet_s: float
    ratio: float  # of the medians


def epoch_s(fleet: Fleet, device: str) -> float:
    """One decision of every environment: CPU time on the CPU, whose cores others may use as well; else wall time."""
    actions = waits(fleet)
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    fleet.step(actions)
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def compare(loop: Fleet, fleet: Fleet, budget_s: float, device: str, most: int = 7) -> Cell:
    """Two rounds at least, and more of them (`most` at most) while they fit the budget."""
    rounds: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(rounds) < 2 or (len(rounds) < most and time.perf_counter() - started < budget_s):
        rounds.append((epoch_s(loop, device) / loop.num_envs, epoch_s(fleet, device) / fleet.num_envs))
    loops, fleets = zip(*rounds, strict=True)
    return Cell(min(loops), min(fleets), median(loops) / median(fleets))
