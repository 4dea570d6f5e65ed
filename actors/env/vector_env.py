"""`SeedTrainingVectorEnv`: a fleet as a Gymnasium `VectorEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from actors.config import EnvConfig, require
from actors.env.env import Obs, gymnasium_spaces
from actors.env.seed_fleet import SeedTrainingFleet
from actors.slots.lifecycle import SeedAction
from actors.types.fleet_step import FleetStep

Flags = NDArray[np.bool_]
Info = dict[str, Any]


class SeedTrainingVectorEnv(VectorEnv[Obs, NDArray[np.int64], NDArray[Any]]):
    """E seed-training environments with stacked observations, actions and infos; see `SeedTrainingEnv` for one.

    An environment whose episode ends is reset in the same step; `info["final_obs"]` and `info["final_info"]` hold the
    end of the old episode. Environment e draws the same episode seeds as a single environment after
    `reset(seed + e)`.
    """

    metadata = {  # noqa: RUF012 (Gymnasium's interface)
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        run_seed: int = 0,
        strict: bool = False,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are fields of `EnvConfig`, as for `make_env`."""
        require(render_mode in (None, "rgb_array"), f"render_mode is {render_mode!r}: give 'rgb_array' or None")
        self.num_envs, self.strict, self.render_mode = num_envs, strict, render_mode
        self.fleet = SeedTrainingFleet(EnvConfig(**settings), num_envs, run_seed)
        self.single_observation_space, self.single_action_space = gymnasium_spaces(self.fleet.spaces)
        self.observation_space: gymnasium.Space[Any] = batch_space(self.single_observation_space, num_envs)
        self.action_space: gymnasium.Space[Any] = batch_space(self.single_action_space, num_envs)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, Info]:
        """Start episodes; `seed` is one for each environment, or a number s for seeds s + e.

        `options["reset_mask"]` (bool `[E]`) limits the reset to some environments.
        """
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        seeds = [seed + e for e in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        chosen: dict[int, int] = {}
        for e in map(int, np.flatnonzero(mask)):
            episode_seed = seeds[e]
            if episode_seed is None:
                chosen[e] = self._draw(e)
            else:
                self._generators[e] = seeding.np_random(episode_seed)[0]
                chosen[e] = episode_seed
        seen = self.fleet.reset_envs(chosen)
        infos: Info = {}
        for e in chosen:
            infos = self._add_info(infos, self.fleet.info(e), e)
        return _observation(seen), infos

    def step(
        self, actions: NDArray[np.int64] | Sequence[SeedAction]
    ) -> tuple[Obs, NDArray[np.float64], Flags, Flags, Info]:
        if not isinstance(actions, np.ndarray):
            profile = self.fleet.config.profile
            actions = np.array([a.as_array(profile) if isinstance(a, SeedAction) else a for a in actions])
        seen = self.fleet.step(actions, self.strict)
        infos: Info = {}
        ended = [int(e) for e in np.flatnonzero(seen.terminated | seen.truncated)]
        for e in range(self.num_envs):
            info = self.fleet.info(e, seen)
            own = {"final_obs": seen.observation(e), "final_info": info} if e in ended else info
            infos = self._add_info(infos, own, e)
        current = seen
        if ended:
            current = self.fleet.reset_envs({e: self._draw(e) for e in ended})
            for e in ended:
                infos = self._add_info(infos, self.fleet.info(e), e)
        return _observation(current), seen.rewards.astype(np.float64), seen.terminated, seen.truncated, infos

    def render(self) -> tuple[Any, ...] | None:
        """Draw each episode so far: RGB `[height, width, 3]` each; None without a render mode."""
        if self.render_mode is None:
            return None
        from actors.env.rendering.timeline_chart import picture

        return tuple(picture(timeline) for timeline in self.fleet.timelines())

    def _draw(self, env: int) -> int:
        return int(self._generators[env].integers(2**31))


def _observation(seen: FleetStep) -> Obs:
    return {"obs": seen.obs, "blueprint_indices": seen.blueprint_indices}
