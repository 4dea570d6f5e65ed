"""Times a fleet and the loop in turns, so that other load on the machine slows both."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from actors.env.fleet import Fleet
from benchmarks.environment.growth import episodes, waits


@dataclass(frozen=True)
class Cell:
    """Seconds per environment and epoch (the best round), and the ratio of loop to fleet (of the medians)."""

    loop_s: float
    fleet_s: float
    ratio: float


def epoch_s(fleet: Fleet, device: str) -> float:
    """Return the seconds of one step of every environment: CPU time on a CPU, which may be shared, else wall time."""
    actions = waits(fleet)
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    fleet.step(actions)
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def compare(loop: Fleet, fleet: Fleet, budget_s: float, device: str, least: int = 2, most: int = 7) -> Cell:
    """Time at least `least` rounds, and up to `most` while they fit the budget."""
    rounds: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(rounds) < least or (len(rounds) < most and time.perf_counter() - started < budget_s):
        rounds.append((epoch_s(loop, device) / loop.num_envs, epoch_s(fleet, device) / fleet.num_envs))
    if len({episode.epoch for episode in episodes(fleet)}) > 1:
        raise RuntimeError("an episode ended while it was timed, and idle environments cost nothing")
    loops, fleets = zip(*rounds, strict=True)
    return Cell(min(loops), min(fleets), median(loops) / median(fleets))
