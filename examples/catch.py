"""A Gymnasium environment of your own, with images: the policy sees pixels, and `tamiyo play` films it.

    cd examples
    tamiyo train --env catch:Catch-v0 --stop-at-return 0.9
    tamiyo play runs/NAME --video catch.gif

The policy has no convolutions: it sees every pixel as a feature. So an image should be small; larger ones are made
smaller by a wrapper (`--gym.wrappers`), such as `gymnasium.wrappers:ResizeObservation`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

HEIGHT, WIDTH = 10, 5
PIXEL = 16  # of a frame that is rendered, for each one of the observation


class Catch(gymnasium.Env[NDArray[np.uint8], int]):
    """A ball falls from a random place in the top row, and a paddle in the bottom row catches it (1) or not (-1)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    action_space = spaces.Discrete(3)  # left, stay, right
    observation_space = spaces.Box(0, 255, (HEIGHT, WIDTH, 1), np.uint8)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.column, self.paddle = 0, int(self.np_random.integers(WIDTH)), WIDTH // 2
        return self._image(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + action - 1, 0, WIDTH - 1))
        self.row += 1
        over = self.row == HEIGHT - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if over else 0.0
        return self._image(), reward, over, False, {}

    def render(self) -> Any:
        """Return a frame `[160, 80, 3]`."""
        return self._image().repeat(PIXEL, 0).repeat(PIXEL, 1).repeat(3, 2)

    def _image(self) -> NDArray[np.uint8]:
        image = np.zeros((HEIGHT, WIDTH, 1), np.uint8)
        image[self.row, self.column] = image[HEIGHT - 1, self.paddle] = 255
        return image


gymnasium.register("Catch-v0", Catch)
