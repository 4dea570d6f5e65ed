"""`Health`: what actors and the learner tell of themselves, and how old what waits is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from math import isfinite

from actors.transport.ledger import LARGEST_INTEGER, ActorLedger
from actors.types.names import is_name

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Health:
    """Seen at one moment; figures are what the tellers call them."""

    now_s: float  # since 1970, by the store's clock
    generation: int = 0
    head_version: int = -1
    oldest_s: float = 0.0  # how long the oldest entry, waiting or pending, has been in the queue; 0 without any
    learner: dict[str, float] = field(default_factory=dict)
    actors: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)  # by (actor, incarnation)
    unreadable: int = 0  # rows that hold no figures, left out


def fault_of_report(actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float]) -> str:
    """Why a store refuses these, as `report` in `lua/producer.lua` judges it; empty where it takes them."""
    counts = (incarnation, *astuple(totals))
    if not is_name(actor):
        return f"no name of an actor: {actor!r}"
    if any(type(n) is not int or not 0 <= n <= LARGEST_INTEGER for n in counts):
        return f"no counts: {counts}"
    if not all(isinstance(v, int | float) and isfinite(v) for v in health.values()):
        return f"no finite figures: {health}"
    return ""


def is_ahead(incarnation: int, latest: int) -> bool:
    """Numbers of incarnations are times; one of the far future would leave none for those after it."""
    return incarnation > max(latest, time.time_ns() // 1_000_000 + DAY_MS)


def read_figures(row: bytes) -> dict[str, float] | None:
    """What one row of the store's tells; None where it cannot be read."""
    try:
        figures = json.loads(row)
        finite = all(isinstance(v, int | float) and isfinite(v) for v in figures.values())
    except (ValueError, AttributeError, OverflowError, RecursionError):
        return None
    return {name: float(v) for name, v in figures.items()} if finite and "reported_s" in figures else None


def read_rows(table: Mapping[bytes, bytes]) -> tuple[dict[str, float], dict[tuple[str, int], dict[str, float]], int]:
    """The learner's row, those of actors, and how many could not be read."""
    learner: dict[str, float] = {}
    actors: dict[tuple[str, int], dict[str, float]] = {}
    unreadable = 0
    for key, row in table.items():
        who, figures = key.decode(errors="replace"), read_figures(row)
        actor, _, number = who.rpartition("/")
        if figures is None or not (who == "learner" or (is_name(actor) and number.isascii() and number.isdigit())):
            unreadable += 1
        elif who == "learner":
            learner = figures
        else:
            actors[actor, int(number)] = figures
    return learner, actors, unreadable
