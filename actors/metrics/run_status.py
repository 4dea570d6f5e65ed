"""The status of a run according to its store: where its episodes are, their age and the bottleneck, as metrics."""

from __future__ import annotations

from actors.metrics.bottleneck import BALANCED, bottleneck, wait_shares
from actors.transport.health import Health
from actors.transport.ledger import ActorLedger, Ledger


def run_status(ledger: Ledger, health: Health) -> dict[str, float]:
    """Return the ledgers of learner and actors, the queue's age and the wait shares, named as in the registry."""
    actors = {term: sum(getattr(a, term) for a in ledger.actors.values()) for term in ("produced", *ActorLedger.TERMS)}
    gap = abs(ledger.gap) + sum(abs(a.gap) for a in ledger.actors.values())
    shares = wait_shares(health.learner, list(health.actors.values()))
    found = bottleneck(shares)
    return {
        **{f"ledger/{term}": float(getattr(ledger, term)) for term in ("accepted", *Ledger.TERMS)},
        **{f"actor_ledger/{term}": float(count) for term, count in actors.items()},
        "ledger_gap": float(gap),
        "oldest_s": health.oldest_s,
        **{f"wait_share/{part}": share for part, share in shares.items()},
        **{f"bottleneck/{part}": float(part == found) for part in (*shares, BALANCED)},
    }
