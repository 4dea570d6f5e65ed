"""What a fixed growth schedule gains on each task family, as measured by `python -m benchmarks.growth_pays`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

MEASURED = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Gain:
    """The gain of the schedule over never growing, in points, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> Literal["pays", "hurts", "even"]:
        """`even` if the interval includes 0."""
        if self.low > 0:
            return "pays"
        return "hurts" if self.high < 0 else "even"

    def text(self) -> str:
        """Return the gain and its interval for a table."""
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


@dataclass(frozen=True)
class Measurement:
    """The result of one task family."""

    never: float  # mean final validation accuracy without growth, points
    grown: float  # the same with the schedule
    growth_ratio: float  # added parameters / host parameters
    rent0: Gain  # of accuracy
    rent5: Gain  # of J with a rent weight of 5


@cache
def measurements() -> dict[str, Measurement]:
    """Return the measurements by family; families that were added later have none."""
    families = json.loads(MEASURED.read_text())["families"]
    return {
        name: Measurement(**row | {"rent0": Gain(**row["rent0"]), "rent5": Gain(**row["rent5"])})
        for name, row in families.items()
    }
