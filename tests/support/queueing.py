"""Shorthands for tests of the queue, whose episodes are sequence numbers with a fixed payload."""

from __future__ import annotations

from typing import Any

from actors.transport.base import EpisodeHeader, PutStatus
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport

OK, DUPLICATE, FENCED, BUSY = PutStatus.OK, PutStatus.DUPLICATE, PutStatus.FENCED, PutStatus.BUSY


def header(
    sequence: int, generation: int = 1, version: int = 0, actor: str = "a", incarnation: int = 0
) -> EpisodeHeader:
    """The header of an episode that one version of the weights acted."""
    return EpisodeHeader(f"run/{actor}/{incarnation}/{sequence}", generation, version, version)


def put(transport: Transport, *sequences: int, payload: bytes = b"payload", **fields: Any) -> list[PutStatus]:
    return [transport.put(header(sequence, **fields), payload).status for sequence in sequences]


def take_ids(transport: Transport, count: int = 100) -> list[str]:
    return [delivery.entry_id for delivery in transport.take(count, 0)]


def counts(transport: Transport, *terms: str) -> tuple[int, ...]:
    ledger = transport.ledger()
    ledger.check()
    return tuple(getattr(ledger, term) for term in terms)


def report(transport: Transport, incarnation: int = 0, /, actor: str = "a", **totals: int) -> None:
    transport.report(actor, incarnation, ActorLedger(**totals), {})
