"""How a run stands by its store's own account: where episodes are, how old, and who is waited for, as metrics."""

from __future__ import annotations

from actors.metrics.bottleneck import BALANCED, bottleneck, shares
from actors.transport.health import Health
from actors.transport.ledger import ActorLedger, Ledger


def run_status(ledger: Ledger, health: Health) -> dict[str, float]:
    """Both accounts with their terms, and waiting; names are those of `actors/metrics/registry.py`."""
    actors = {term: sum(getattr(a, term) for a in ledger.actors.values()) for term in ("produced", *ActorLedger.TERMS)}
    gap = abs(ledger.gap) + sum(abs(a.gap) for a in ledger.actors.values())
    waits = shares(health.learner, list(health.actors.values()))
    verdict = bottleneck(waits)
    return {
        **{f"ledger/{term}": float(getattr(ledger, term)) for term in ("accepted", *Ledger.TERMS)},
        **{f"actor_ledger/{term}": float(count) for term, count in actors.items()},
        "ledger_gap": float(gap),
        "oldest_s": health.oldest_s,
        **{f"wait_share/{part}": share for part, share in waits.items()},
        **{f"bottleneck/{part}": float(part == verdict) for part in (*waits, BALANCED)},
    }
