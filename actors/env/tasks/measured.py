"""What growing gains on each task family.

The figures of `measured.json` were measured once, by a program that is not kept; the file holds its settings.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

MEASURED = Path(__file__).with_name("measured.json")
PRICE = 1.0
"""Points per doubling of the parameters in `Grown.priced`."""


class Gain(NamedTuple):
    """The gain of a rule over never growing, in points, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> Literal["pays", "hurts", "even"]:
        """`even` if the interval includes 0."""
        if self.low > 0:
            return "pays"
        return "hurts" if self.high < 0 else "even"


class Grown(NamedTuple):
    """What one way of growing brings."""

    free: Gain  # of accuracy
    priced: Gain  # of J at `PRICE`, where compute is free


class Measurement(NamedTuple):
    """The result of one task family in hosts of one width."""

    never: float  # mean final validation accuracy without growth, points
    seed: Grown  # one wide seed in the stream
    column: Grown  # one column of twice the width


@cache
def measurements() -> dict[str, tuple[Measurement, ...]]:
    """Return the measurements in small, medium and large hosts, by family; families added later have none."""
    families = json.loads(MEASURED.read_text())["families"]
    return {
        name: tuple(Measurement(of["never"], _grown(of["seed"]), _grown(of["column"])) for of in found)
        for name, found in families.items()
    }


def _grown(data: dict[str, Any]) -> Grown:
    return Grown(Gain(**data["free"]), Gain(**data["priced"]))
