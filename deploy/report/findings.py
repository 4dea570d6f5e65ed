"""What the policy learned to do on narrow and on ample hosts, and at low and at high prices, in sentences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deploy.report.episodes import EndedEpisode
from deploy.report.run_folder import RunFolder

FEWEST = 10  # episodes of each kind that a sentence needs


class Habit(NamedTuple):
    """What the policy did in some episodes."""

    share: float  # of the episodes that ended with something grown
    size: float  # mean size at the end, in sizes of the host
    gained: float  # mean J

    @property
    def text(self) -> str:
        if self.share < 0.005:
            return "it grew nothing"
        return f"it grew in {self.share:.0%} of the episodes, to {self.size:.1f} times the host's size on average"


def findings(run: RunFolder) -> list[str]:
    """Return sentences about the last fifth of a run's episodes; none for Gymnasium environments and short runs."""
    rows, found = run.episodes.last_fifth, []
    if (halves := _halves(rows, "host_width")) is not None:
        (narrow, ample), (first, last) = map(_habit, halves), (_span(half, "host_width") for half in halves)
        found.append(f"On narrow hosts ({first} units or channels) {narrow.text}; on ample ones ({last}) {ample.text}.")
        found.append(f"That earned {narrow.gained:+.1f} points on narrow hosts and {ample.gained:+.1f} on ample ones.")
    if (halves := _halves(rows, "price")) is not None:
        (low, high), (first, last) = map(_habit, halves), (_span(half, "price") for half in halves)
        found.append(
            f"Where a doubling of the parameters costs {first} points {low.text}; where it costs {last}, {high.text}."
        )
    return found


def _halves(rows: list[EndedEpisode], name: str) -> tuple[list[EndedEpisode], list[EndedEpisode]] | None:
    """Split at the median of a figure; None if it does not vary or too few episodes are on one side."""
    if not rows:
        return None
    middle = float(np.median([getattr(row, name) for row in rows]))
    low = [row for row in rows if getattr(row, name) <= middle]
    high = [row for row in rows if getattr(row, name) > middle]
    return (low, high) if min(len(low), len(high)) >= FEWEST else None


def _habit(rows: list[EndedEpisode]) -> Habit:
    grown = np.array([row.growth_ratio for row in rows])
    gained = float(np.mean([row.objective for row in rows]))
    return Habit(float((grown > 0).mean()), float(2.0 ** np.log2(1.0 + grown).mean()), gained)


def _span(rows: list[EndedEpisode], name: str) -> str:
    low, high = (f"{f(getattr(row, name) for row in rows):.3g}" for f in (min, max))
    return low if low == high else f"{low} to {high}"
