"""The status of a run according to its store: where its episodes are, their age, and who waits for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.transport.health import Health
from actors.transport.ledger import ActorLedger, Ledger

Times = Mapping[str, float]
MIN_SHARE = 0.1  # smallest share of time for which a part counts as the bottleneck
BALANCED = "balanced"


def wait_shares(learner: Times, actors: Sequence[Times]) -> dict[str, float]:
    """Return the share of time, 0 to 1, that is spent waiting for each part.

    Actor-bound: the learner waits for episodes. Learner-bound: actors wait because the queue is full. Queue-bound:
    either waits for the queue's server. Broadcast-bound: either waits for weights to be published or fetched.
    Supervisor-bound: actors wait to be called again. For actors, shares are the mean over all of them. Shares are of
    the time of the one who waits, learner or actors, and do not add up to 1.
    """

    def actor_share(name: str) -> float:
        known = [a for a in actors if a.get("elapsed_s", 0) > 0]
        return sum(a.get(name, 0.0) / a["elapsed_s"] for a in known) / len(known) if known else 0.0

    cycle_s = learner.get("cycle_s", 0.0)

    def learner_share(seconds: float) -> float:
        return max(0.0, seconds) / cycle_s if cycle_s > 0 else 0.0

    starved_s, wait_s = learner.get("starved_s", 0.0), learner.get("wait_s", 0.0)
    shares = {
        "actor-bound": learner_share(starved_s),
        "learner-bound": actor_share("waited_s"),
        "queue-bound": max(learner_share(wait_s - starved_s), actor_share("put_s")),
        "broadcast-bound": max(learner_share(learner.get("publish_s", 0.0)), actor_share("fetch_s")),
        "supervisor-bound": actor_share("idle_s"),
    }
    return {name: min(1.0, share) for name, share in shares.items()}


def bottleneck(shares: Mapping[str, float]) -> str:
    """Return the name of the largest of `wait_shares`, or `balanced` if all are below `MIN_SHARE`."""
    name = max(shares, key=lambda n: shares[n])
    return name if shares[name] >= MIN_SHARE else BALANCED


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
