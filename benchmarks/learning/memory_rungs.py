"""The rungs of the memory ladder: a task, its budget, its goal, and how its settings differ from preset `general`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from actors.config import ActingConfig, ActorsConfig, GymConfig
from deploy.config.schema import PRESETS
from learner.config import LearnerConfig


def _itself(mean_return: float) -> float:
    return mean_return


def _of_bits(mean_return: float) -> float:
    """Share of right answers, where a right one is worth 1 and a wrong one -1."""
    return (mean_return + 1) / 2


@dataclass(frozen=True)
class Rung:
    name: str
    env_id: str
    budget_steps: int
    goal: float  # the score to reach within the budget
    control: float  # what the control's score may be at most
    kwargs: tuple[str, ...] = ()
    score: Callable[[float], float] = _itself  # from the mean return
    needed: int = 5  # seeds of 5 that must reach the goal
    envs: int = 16
    max_segment_steps: int = 1024
    settings: dict[str, Any] = field(default_factory=dict)  # of the learner, where they differ from the preset
    judge_every: int = 10  # updates between two looks at the score
    episodes: int = 100  # that the reported score is of

    def acting(self) -> ActingConfig:
        gym = GymConfig(id=self.env_id, kwargs=self.kwargs, max_segment_steps=self.max_segment_steps)
        return ActingConfig(
            gym=gym, policy=PRESETS["general"].policy, actors=ActorsConfig(count=1, envs_per_actor=self.envs)
        )

    def learner(self) -> LearnerConfig:
        own = {"device": "cpu", "checkpoint_every": 10**6, "updates": 10**6, **self.settings}
        return replace(PRESETS["general"].learner, **own)

    def flags(self) -> str:
        """Flags of `tamiyo train` that state how its settings differ from preset `general`."""
        own = {"actors.count": 1, "actors.envs_per_actor": self.envs, "gym.max_segment_steps": self.max_segment_steps}
        own |= {f"learner.{name}": "null" if value is None else value for name, value in self.settings.items()}
        return " ".join(f"--{name} {value}" for name, value in own.items())


# Small batches and many passes: the budgets are small. The KL stop of the preset would end most passes early.
_SMALL = {"batch_episodes": 1, "batch_steps": 1024, "update_epochs": 10, "lr": 1e-3, "burn_in": 0, "target_kl": 0.05}

# Every step is paid, so that there is more to learn from each; fewer passes over larger batches cost less time.
_DENSE = _SMALL | {"batch_steps": 2048, "update_epochs": 4, "target_kl": 0.1}

RUNGS = (
    Rung(
        "concept",
        "benchmarks.learning.memory_tasks:bench/Cue-v0",
        50_000,
        0.99,
        0.55,
        settings=_SMALL | {"update_epochs": 4},
        judge_every=4,
        episodes=1000,  # a coin's share of heads has a deviation of 0.016
    ),
    Rung(
        "masked-cartpole",
        "benchmarks.learning.memory_tasks:bench/MaskedCartPole-v1",
        100_000,
        475.0,
        80.0,
        needed=4,
        envs=8,
        max_segment_steps=128,
        settings=_SMALL | {"gamma": 0.98, "gae_lambda": 0.8, "value_clip": None},
    ),
    Rung(
        "chain-30",
        "benchmarks.learning.memory_tasks:bench/MemoryChain-v0",
        1_000_000,
        0.99,
        0.55,
        ("n=30",),
        _of_bits,
        settings=_SMALL,
        episodes=1000,
    ),
    Rung("repeat-previous-easy", "popgym:popgym-RepeatPreviousEasy-v0", 2_000_000, 0.9, -0.4, envs=32, settings=_DENSE),
    Rung(
        "repeat-first-medium",
        "popgym:popgym-RepeatFirstMedium-v0",
        2_000_000,
        0.9,
        -0.4,
        envs=32,
        max_segment_steps=64,  # an episode's 831 steps at once would be 13 batches: old before they are complete
        settings=_DENSE,
    ),
)
