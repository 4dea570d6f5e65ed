"""Detect a learner that is already training a run."""

from __future__ import annotations

import time

from actors.errors import UserError
from actors.transport.redis import Transport

MIN_WATCH_S = 1.5  # a learner that waits for episodes polls every half second
MAX_WATCH_S = 20.0


def refuse_second_learner(consumer: Transport, run: str) -> None:
    """Raise `UserError` if another learner is training this run.

    A live learner increments `turn` in the ledger with each poll. The ledger is watched for longer than the learner's
    last update took, because a learner does not poll during an update.
    """
    before = consumer.ledger().turn
    if not before:
        return
    health = consumer.health().learner
    busy_s = health.get("update_s", 0.0) + health.get("checkpoint_s", 0.0)
    deadline = time.monotonic() + min(MAX_WATCH_S, MIN_WATCH_S + 2.0 * busy_s)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if consumer.ledger().turn != before:
            raise UserError(
                f"a learner is training run {run!r} already, and a run has only one: stop it first, or give this run "
                "another --run.name"
            )
