"""Whether growing pays on a task, as `python -m benchmarks.growth_pays` measured it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

MEASURED = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Gain:
    """Points that the benchmark's schedule gains over never growing, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> Literal["pays", "hurts", "even"]:
        """By the interval's sign."""
        if self.low > 0:
            return "pays"
        return "hurts" if self.high < 0 else "even"

    def text(self) -> str:
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


@dataclass(frozen=True)
class Measurement:
    never: float  # mean final validation accuracy without growth, points
    grown: float  # and with the schedule
    growth_ratio: float  # added parameters / host parameters
    rent0: Gain
    rent5: Gain


@cache
def measurements() -> dict[str, Measurement]:
    """By family; one that was added since has none."""
    families = json.loads(MEASURED.read_text())["families"]
    return {
        name: Measurement(**row | {"rent0": Gain(**row["rent0"]), "rent5": Gain(**row["rent5"])})
        for name, row in families.items()
    }
