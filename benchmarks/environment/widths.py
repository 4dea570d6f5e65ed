"""Compares a fleet whose widths are drawn with fleets of one width each, and with the most that these allow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import harmonic_mean, mean, median

import numpy as np

from actors.env.fleet import Fleet
from benchmarks.environment.growth import episodes
from benchmarks.environment.rounds import epoch_s


@dataclass(frozen=True)
class DrawnWidths:
    """Seconds per environment and epoch. Ratios are to the arithmetic mean of the speeds of fleets of one width."""

    drawn_s: float
    own_s: Mapping[int, float]  # by width, in increasing order: fleets of one width
    drawn: tuple[int, ...]  # the widths in the drawn fleet

    @property
    def mean_speed(self) -> float:
        """Epochs per second and environment."""
        return mean(1 / s for s in self.own_s.values())

    @property
    def ratio(self) -> float:
        return 1 / self.drawn_s / self.mean_speed

    @property
    def lossless_s(self) -> float:
        """The drawn fleet's time if each environment took as long as in a fleet of its own width.

        Times between measured widths are interpolated, linearly in the logarithms.
        """
        known, seconds = (np.log(list(values)) for values in (self.own_s, self.own_s.values()))
        return float(np.exp(np.interp(np.log(self.drawn), known, seconds)).mean())

    @property
    def lossless_ratio(self) -> float:
        """What the ratio would then be. Times add up, speeds do not, so that it may be below 1."""
        return 1 / self.lossless_s / self.mean_speed

    @property
    def harmonic_ratio(self) -> float:
        """The same for a fleet that has each measured width equally often."""
        return harmonic_mean([1 / s for s in self.own_s.values()]) / self.mean_speed


def compare_widths(drawn: Fleet, own: Mapping[int, Fleet], budget_s: float) -> DrawnWidths:
    """Time a fleet of drawn widths and fleets of one width (by width), all on the CPU.

    Times are the medians of rounds in which all take turns.
    """
    fleets = [drawn, *own.values()]
    rounds: list[list[float]] = []
    started = time.perf_counter()
    while len(rounds) < 2 or (len(rounds) < 7 and time.perf_counter() - started < budget_s):
        rounds.append([epoch_s(f, "cpu") / f.num_envs for f in fleets])
    drawn_s, *own_s = (median(times) for times in zip(*rounds, strict=True))
    widths = tuple(episode.host.width for episode in episodes(drawn))
    return DrawnWidths(drawn_s, dict(zip(own, own_s, strict=True)), widths)
