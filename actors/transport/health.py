"""`Health`: what actors and the learner tell of themselves, and how old what waits is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Health:
    """Seen at one moment; figures are what the tellers call them."""

    now_s: float  # since 1970, by the store's clock
    generation: int = 0
    head_version: int = -1
    oldest_s: float = 0.0  # how long the oldest entry, waiting or pending, has been in the queue; 0 without any
    learner: dict[str, float] = field(default_factory=dict)
    actors: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)  # by (actor, incarnation)
