"""`Account`: what a token has contributed to a run with training sessions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Account:
    """Totals of one token since the start of this server."""

    name: str  # of the producer in the ledger
    produced: int = 0  # episodes and segments
    accepted: int = 0  # by the queue
    fenced: int = 0  # acted by weights that were rolled back
    dropped: int = 0
    unsent: int = 0
    steps: int = 0  # of the episodes that were produced
    cut_sessions: int = 0  # whose clients disappeared, and whose steps were shipped
    dropped_sessions: int = 0  # whose clients disappeared or may no longer train, and whose steps were not shipped
    refused: int = 0
