"""`Health`: the latest figures that the learner and the actors reported, and the age of the oldest queued episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from actors.types.names import is_name


@dataclass(frozen=True)
class Health:
    """A snapshot of the figures that the learner and the actors last reported, under the names that they gave them.

    Each report also holds `reported_s`, the Unix time of the report by the reporter's clock.
    """

    now_s: float  # Unix time by the store's clock
    generation: int = 0
    head_version: int = -1
    oldest_s: float = 0.0  # age of the oldest queued or pending entry; 0 if there is none
    learner: dict[str, float] = field(default_factory=dict)
    actors: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)  # by (actor, incarnation)
    unreadable: int = 0  # rows that could not be parsed and were skipped


def _read_figures(row: bytes) -> dict[str, float] | None:
    """Parse one row of the store's `health` hash; None if it is invalid."""
    try:
        figures = json.loads(row)
        finite = all(isinstance(v, int | float) and isfinite(v) for v in figures.values())
    except (ValueError, AttributeError, OverflowError, RecursionError):
        return None
    return {name: float(v) for name, v in figures.items()} if finite and "reported_s" in figures else None


def read_rows(table: Mapping[bytes, bytes]) -> tuple[dict[str, float], dict[tuple[str, int], dict[str, float]], int]:
    """Parse the `health` hash: the learner's figures, those of each actor, and the number of invalid rows."""
    learner: dict[str, float] = {}
    actors: dict[tuple[str, int], dict[str, float]] = {}
    unreadable = 0
    for key, row in table.items():
        reporter, figures = key.decode(errors="replace"), _read_figures(row)
        actor, _, number = reporter.rpartition("/")
        is_actor = is_name(actor) and number.isascii() and number.isdigit()
        if figures is None or not (reporter == "learner" or is_actor):
            unreadable += 1
        elif reporter == "learner":
            learner = figures
        else:
            actors[actor, int(number)] = figures
    return learner, actors, unreadable
