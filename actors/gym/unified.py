"""`UnifiedEnv`: brings what environments return into one form."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from actors.errors import UserError
from actors.gym.frames import own_frames
from actors.gym.spaces import MASK, GymSpaces, has_mask

AnyEnv = gymnasium.Env[Any, Any]


class UnifiedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives rewards as floats, and masks as `info["action_mask"]`, flat and bool.

    Masks are found in this order: in the infos (Gymnasium's convention), in a Dict observation under the key
    `action_mask` (RLlib's), in the result of a method `action_masks()` (sb3-contrib's). An environment with none of
    them has no masks. A mask is never part of the observation.

    `heartbeat` is called after each reset and step. `close` does not raise.
    """

    def __init__(self, env: AnyEnv, env_id: str, heartbeat: Callable[[], None] = lambda: None) -> None:
        super().__init__(env)
        self._id, self._heartbeat = env_id, heartbeat
        self._method = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None
        self._rest: list[str] = []  # keys of the observation without its mask
        given = env.observation_space
        if isinstance(given, spaces.Dict) and MASK in given.spaces and len(given.spaces) > 1:
            self._rest = [key for key in given.spaces if key != MASK]
            self.observation_space = (
                given[self._rest[0]] if len(self._rest) == 1 else spaces.Dict({key: given[key] for key in self._rest})
            )
        self._lost = not self._rest and has_mask(env.unwrapped.observation_space)  # by a wrapper, such as flattening
        self._spaces = GymSpaces(env_id, self.observation_space, env.action_space)
        if self._rest:
            mask: Any = given[MASK]  # type: ignore[index]
            self._spaces.flat_mask(mask.sample())  # which refuses a mask of another size before anything is played
            if isinstance(mask, spaces.Box) and (np.any(mask.low < 0) or np.any(mask.high > 1)):
                raise UserError(
                    f"{env_id} has a mask with other numbers than 0 and 1 in its observation ({mask}): give 1 for each "
                    "legal choice"
                )
        heartbeat()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self._run(lambda: self.env.reset(seed=seed, options=options))
        return self._unified(obs, info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._run(lambda: self.env.step(action))
        obs, info = self._unified(obs, info)
        if type(reward) is not float:
            try:
                reward = float(reward.item() if hasattr(reward, "item") else reward)
            except (TypeError, ValueError, RuntimeError) as error:
                raise UserError(f"{self._id} gave the reward {reward!r}: give one number") from error
        return obs, reward, terminated, truncated, info

    def _run(self, call: Callable[[], Any]) -> Any:
        """Return `call()`. Notes an error's frames where it would lose them: on the way from the process of an
        `AsyncVectorEnv`."""
        try:
            result = call()
        except Exception as error:
            if multiprocessing.parent_process() is not None:
                error.add_note(own_frames(error))
            raise
        self._heartbeat()
        return result

    def close(self) -> None:
        close_quietly(self.env)

    def _unified(self, obs: Any, info: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        mask = info.get(MASK) if info else None
        if self._rest:
            mask = obs[MASK] if mask is None else mask
            obs = obs[self._rest[0]] if len(self._rest) == 1 else {key: obs[key] for key in self._rest}
        if mask is None and self._method is not None:
            mask = self._method()
        if mask is None and self._lost:
            raise UserError(
                f"a wrapper of {self._id} hides the mask of its observation: leave the wrapper out, or give the mask "
                f'as info["{MASK}"]'
            )
        # Other infos are not used; passing them on would only cost copies.
        return obs, {} if mask is None else {MASK: self._spaces.flat_mask(mask)}


def close_quietly(env: AnyEnv | VectorEnv[Any, Any, Any]) -> None:
    """Close an environment; print what it raises, because others must still be closed."""
    try:
        env.close()  # type: ignore[no-untyped-call]
    except Exception:
        traceback.print_exc()
