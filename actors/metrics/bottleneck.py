"""The bottleneck of a run, derived from the time that learner and actors spend waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
