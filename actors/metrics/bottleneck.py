"""Who holds a run up, from where learner and actors spend their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Times = Mapping[str, float]
LITTLE = 0.1  # of the time: below it nobody waits for anybody
BALANCED = "balanced"


def shares(learner: Times, actors: Sequence[Times]) -> dict[str, float]:
    """Of somebody's time that went by in waiting for each, 0 to 1.

    The learner starves for actors; actors wait for a full queue, which is the learner's to empty; both wait for the
    queue's server; publishing and fetching weights is the broadcast. Actors count with the mean of all.
    """

    def actors_share(name: str) -> float:
        known = [a for a in actors if a.get("elapsed_s", 0) > 0]
        return sum(a.get(name, 0.0) / a["elapsed_s"] for a in known) / len(known) if known else 0.0

    cycle_s = learner.get("cycle_s", 0.0)

    def learners_share(seconds: float) -> float:
        return max(0.0, seconds) / cycle_s if cycle_s > 0 else 0.0

    starved_s, wait_s = learner.get("starved_s", 0.0), learner.get("wait_s", 0.0)
    found = {
        "actor-bound": learners_share(starved_s),
        "learner-bound": actors_share("waited_s"),
        "queue-bound": max(learners_share(wait_s - starved_s), actors_share("put_s")),
        "broadcast-bound": max(learners_share(learner.get("publish_s", 0.0)), actors_share("fetch_s")),
    }
    return {name: min(1.0, share) for name, share in found.items()}


def bottleneck(found: Mapping[str, float]) -> str:
    """The largest share's name; `balanced` where all are small."""
    name = max(found, key=lambda n: found[n])
    return name if found[name] >= LITTLE else BALANCED
