"""Whether a run has a learner already: a second one would take it over."""

from __future__ import annotations

import time

from actors.errors import UserError
from actors.transport.base import Consumer

WATCH_S = 1.5  # a learner that waits for episodes asks for them every half second
LONGEST_WATCH_S = 20.0


def refuse_second_learner(consumer: Consumer, run: str) -> None:
    """Watch whether the learner's calls go on, for as long as its last update kept it from making any. Raises
    `UserError` where they do."""
    before = consumer.ledger().turn
    if not before:
        return
    fares = consumer.health().learner
    busy_s = fares.get("update_s", 0.0) + fares.get("checkpoint_s", 0.0)
    until = time.monotonic() + min(LONGEST_WATCH_S, WATCH_S + 2.0 * busy_s)
    while time.monotonic() < until:
        time.sleep(0.1)
        if consumer.ledger().turn != before:
            raise UserError(
                f"a learner is training run {run!r} already, and a run has one: stop that one first, or give this run "
                "a --run.name of its own"
            )
