"""A Gymnasium environment of your own, with masks of the legal actions.

cd examples
tamiyo train --env warehouse:Warehouse-v0 --stop-at-return 0.7
tamiyo play runs/NAME
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SIZE = 5
SHELVES = ((1, 1), (1, 3), (3, 1), (3, 3))
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
GRASP, EXIT = len(MOVES), (0, 0)


class Warehouse(gymnasium.Env[dict[str, Any], int]):
    """A robot fetches a parcel and brings it to the exit. It cannot pass shelves, and grasps only where a parcel is."""

    action_space = spaces.Discrete(len(MOVES) + 1)
    observation_space = spaces.Dict(
        robot=spaces.MultiDiscrete([SIZE, SIZE]),  # a one-hot vector for each number
        parcel=spaces.MultiDiscrete([SIZE, SIZE]),
        carries=spaces.Discrete(2),
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        free = [(y, x) for y in range(SIZE) for x in range(SIZE) if (y, x) not in (*SHELVES, EXIT)]
        self.robot, self.parcel = (free[k] for k in self.np_random.choice(len(free), 2, replace=False))
        self.carries = False
        return self._look()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._legal()[action]:
            self.carries = self.carries or action == GRASP
            self.robot = self.robot if action == GRASP else self._moved(action)
        if self.carries:
            self.parcel = self.robot
        delivered = self.carries and self.robot == EXIT
        obs, info = self._look()
        return obs, 1.0 if delivered else -0.01, delivered, False, info

    def _moved(self, action: int) -> tuple[int, int]:
        (y, x), (down, right) = self.robot, MOVES[action]
        return y + down, x + right

    def _legal(self) -> NDArray[np.int8]:
        targets = [self._moved(action) for action in range(len(MOVES))]
        free = [min(place) >= 0 and max(place) < SIZE and place not in SHELVES for place in targets]
        return np.array([*free, self.robot == self.parcel and not self.carries], dtype=np.int8)

    def _look(self) -> tuple[Any, dict[str, Any]]:
        """Return the observation, and the legal actions in the infos."""
        obs = {"robot": np.array(self.robot), "parcel": np.array(self.parcel), "carries": int(self.carries)}
        return obs, {"action_mask": self._legal()}


gymnasium.register("Warehouse-v0", Warehouse, max_episode_steps=60)
