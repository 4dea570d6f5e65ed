"""Tasks with continuous actions, and the settings of both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from actors.config import ActingConfig, ActorsConfig, GymConfig
from deploy.config.schema import PRESETS
from learner.config import LearnerConfig

ENVS, SEGMENT_STEPS = 8, 256  # an episode has 200 steps

# As for the memory ladder: the budget is small, hence small batches and several passes. An entropy coefficient per nat
# is left at 0, and the discount is that of a task whose rewards come at once.
SETTINGS: dict[str, Any] = {
    "batch_episodes": 1,
    "batch_steps": 2048,
    "update_epochs": 10,
    "minibatches": 8,
    "lr": 5e-4,
    "gamma": 0.95,
    "value_clip": None,
    "burn_in": 0,
    "target_kl": 0.05,
}


@dataclass(frozen=True)
class ContinuousTask:
    """A task whose episodes have 200 steps."""

    name: str
    env_id: str
    goal: float  # mean return
    control: float | None = None  # mean return that the policy without memory may reach at most; None: none is needed
    budget_steps: int = 100_000

    def acting(self, core: str) -> ActingConfig:
        policy = replace(PRESETS["general"].policy, core=core)  # type: ignore[arg-type]
        gym = GymConfig(id=self.env_id, max_segment_steps=SEGMENT_STEPS)
        return ActingConfig(gym=gym, policy=policy, actors=ActorsConfig(count=1, envs_per_actor=ENVS))

    def learner(self) -> LearnerConfig:
        return replace(PRESETS["general"].learner, device="cpu", checkpoint_every=10**6, updates=10**6, **SETTINGS)

    def make(self) -> gymnasium.Env[Any, Any]:
        """One environment, for other libraries."""
        return gymnasium.make(self.env_id)


TASKS = (
    ContinuousTask("pendulum", "Pendulum-v1", -200.0),
    ContinuousTask("masked-pendulum", "benchmarks.learning.memory_tasks:bench/MaskedPendulum-v1", -250.0, -800.0),
    ContinuousTask("popgym-pendulum", "popgym:popgym-PositionOnlyPendulumEasy-v0", 0.85, 0.5),
)
