"""Tasks that need memory, registered with Gymnasium: `--env benchmarks.learning.memory_tasks:bench/Cue-v0`."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register
from numpy.typing import NDArray

Obs = NDArray[np.float32]
Info = dict[str, Any]


class Cue(gymnasium.Env[Obs, np.int64]):
    """A cue at step 0, silence, and a question at the end, where the answer is the cue.

    Observation: cue (-1 or 1 at step 0, else 0), question (1 at the last step, else 0). The reward is 1 for the right
    answer and 0 for the wrong one; what is done before the question does not matter.
    """

    def __init__(self, length: int = 8) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, self.length == 1], dtype=np.float32), {}

    def step(self, action: np.int64) -> tuple[Obs, SupportsFloat, bool, bool, Info]:
        self.t += 1
        over = self.t == self.length
        return (
            np.array([0, self.t == self.length - 1], dtype=np.float32),
            float(over and action == self.cue),
            over,
            False,
            {},
        )


class MemoryChain(gymnasium.Env[Obs, np.int64]):
    """Remember one bit for n steps: bsuite's memory length (Osband et al., 2020), after its description.

    Observation: 1 - t / n, the query (0 or 1, at the last step), the context (-1 or 1 at step 0, else 0). The answer to
    the query is worth 1 or -1; there is no other reward.
    """

    def __init__(self, n: int = 10) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
        self.n = n

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self.context, self.t = int(self.np_random.integers(2)), 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[Obs, SupportsFloat, bool, bool, Info]:
        over = self.t == self.n
        reward = (1.0 if action == self.context else -1.0) if over else 0.0
        self.t += 1
        return self._look(), reward, over, False, {}

    def _look(self) -> Obs:
        context = 2 * self.context - 1 if self.t == 0 else 0
        return np.array([1 - self.t / self.n, self.t >= self.n, context], dtype=np.float32)


class Keep(gymnasium.ObservationWrapper[Obs, Any, Obs]):
    """Shows some entries of the observation: without velocities, a controller has to remember."""

    def __init__(self, env: gymnasium.Env[Obs, Any], entries: list[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.entries = entries
        self.observation_space = spaces.Box(space.low[entries], space.high[entries], dtype=np.float32)

    def observation(self, observation: Obs) -> Obs:
        return observation[self.entries]


def masked_cart_pole() -> gymnasium.Env[Obs, Any]:
    """Positions of cart and pole only."""
    return Keep(gymnasium.make("CartPole-v1", max_episode_steps=-1), [0, 2])


_FAST: dict[str, Any] = {"disable_env_checker": True, "order_enforce": False}
register("bench/Cue-v0", entry_point=Cue, **_FAST)
register("bench/MemoryChain-v0", entry_point=MemoryChain, **_FAST)
register("bench/MaskedCartPole-v1", entry_point=masked_cart_pole, max_episode_steps=500, **_FAST)
