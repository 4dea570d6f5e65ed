"""`HostEpisode` with a scripted accuracy instead of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from actors.config import EnvConfig
from actors.env.episode.epoch import EpochOutcome, EpochResult
from actors.env.episode.host_episode import HostEpisode
from actors.slots.contributions import EvalResult, Subset, Validation
from actors.slots.spaces import seed_spaces
from tests.support.env.walks import Action

Accuracy = Callable[[int, Subset], float]
"""(epochs trained, slots whose seeds are on) -> points."""


@dataclass
class Scripted:
    episode: HostEpisode
    rewards: list[float] = field(default_factory=list)
    last: EpochOutcome | None = None

    @property
    def objective(self) -> float:
        return self.last.telemetry["objective"]

    def discounted(self, gamma: float) -> float:
        return sum(gamma**t * r for t, r in enumerate(self.rewards))


def play(
    config: EnvConfig,
    accuracy: Accuracy,
    actions: Sequence[Action] | Callable[[HostEpisode], Action],
    twin: Sequence[float] = (),
    panic_at: int = -1,
    observed: Accuracy | None = None,
) -> Scripted:
    """Play legal actions, then WAIT, until the episode ends. The loss of epoch `panic_at` (from 0) is NaN.

    The policy sees the accuracy `observed`, if it is another.
    """
    seen = observed or accuracy
    spec = seed_spaces(config.total_slots, config.profile).action
    run = Scripted(HostEpisode(config, 0, 0, spec))

    def validation(epoch: int, on: Subset, loss: float = 1.0) -> Validation:
        return Validation(EvalResult(seen(epoch, on), loss), accuracy(epoch, on))

    run.episode.begin(validation(0, frozenset()), twin)
    wait = np.zeros(len(spec.heads), dtype=np.int64)
    while run.last is None or run.last.end_reason is None:
        t = len(run.rewards)
        chosen = actions(run.episode) if callable(actions) else actions[t] if t < len(actions) else wait
        action, illegal = run.episode.growth.read(chosen)
        assert not illegal
        plan = run.episode.plan_epoch(action)
        broken = float("nan") if t == panic_at else 1.0
        results = {subset: EvalResult(seen(t + 1, subset), broken) for subset in plan.subsets}
        grown = (*plan.blended, *plan.training)
        current = validation(t + 1, plan.subsets[0], broken)
        result = EpochResult(broken, {s: [1.0] for s in grown}, {}, current, results)
        run.last = run.episode.complete_epoch(
            plan, result, lambda slots, t=t: validation(t, frozenset(run.episode.growth.blended()))
        )
        run.rewards.append(run.last.reward)
    return run
