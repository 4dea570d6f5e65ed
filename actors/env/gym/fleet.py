"""`GymFleet`: E Gymnasium environments that run on by themselves, each starting anew when it ends.

The seed fleet plays in waves; here nobody waits for anybody. A step shows both what it led to and what is to be acted
on next, which differ where an episode ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from actors.env.fleet import FleetStep
from actors.env.gym.spaces import GymSpaces
from actors.errors import UserError
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason
from actors.types.spaces import Spaces

Flags = NDArray[np.bool_]  # [E]
SeedOf = Callable[[int], int]
"""Draws the seed of a row's next episode."""


class StreamStep(NamedTuple):
    """One step of environments that never wait for each other."""

    led_to: FleetStep  # where an episode ended: its final observation, and the masks after it
    now: FleetStep  # what is to be acted on
    began: Flags  # rows whose `now` is the first of a new episode


class StreamFleet(Protocol):
    """Environments in streams: a row that ended begins its next episode by itself, at once or one step later."""

    env_id: str
    spaces: Spaces
    num_envs: int
    seeds: NDArray[np.int64]  # [E] of the episodes under way

    def start(self) -> StreamStep: ...

    def step(self, actions: NDArray[np.int64]) -> StreamStep:
        """`actions [E, H]`; those of a row between two episodes are ignored."""
        ...


EVERY_MASK = "give one with every observation, all ones where every action is legal"


def autoreset_mode(env_id: str, env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """The mode that a vector environment declares. Raises `UserError` for one that declares none."""
    # Environments of one class share its metadata, so that only the attribute is surely this one's.
    declared = env.metadata.get("autoreset_mode")
    for owner in (env.unwrapped, env):
        declared = getattr(owner, "autoreset_mode", declared)
    try:
        return AutoresetMode(declared)
    except ValueError as error:
        names = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        raise UserError(
            f"{env_id} does not declare how its vector environment resets (autoreset_mode is {declared!r}): set "
            f'metadata["autoreset_mode"] of its class to one of {names}'
        ) from error


class GymFleet:
    """A vector environment in any of Gymnasium's autoreset modes.

    With DISABLED each episode is reset by its own seed: what it shows is a function of that seed and its actions.
    With SAME_STEP and NEXT_STEP, and where a vector environment takes a single seed, only the first reset is seeded;
    later seeds name an episode and its policy noise.

    An environment gives an action mask with every observation that is acted on, or with none. Anything else raises
    `UserError`, because a missing mask would allow actions that may be illegal.
    """

    def __init__(self, env_id: str, env: VectorEnv[Any, Any, Any], seed_of: SeedOf) -> None:
        self.env_id, self.env, self.seed_of = env_id, env, seed_of
        self.num_envs = env.num_envs
        self._own = GymSpaces(env_id, env.single_observation_space, env.single_action_space)
        self.spaces = self._own.spaces
        self.autoreset = autoreset_mode(env_id, env)
        self.seeds = np.zeros(self.num_envs, dtype=np.int64)
        self._between = np.zeros(self.num_envs, dtype=np.bool_)  # NEXT_STEP: rows that the next step resets
        self._gives_masks = False
        self._takes_seeds = True  # one for each environment, and not a single one for all
        masks_of_all: Callable[[], Any] | None = getattr(env.unwrapped, "action_masks", None)
        self._masks_of_all = masks_of_all  # sb3-contrib's convention, where a vector environment has it itself

    def start(self) -> StreamStep:
        everyone, nobody = np.ones(self.num_envs, dtype=np.bool_), np.zeros(self.num_envs, dtype=np.bool_)
        self._draw_seeds(everyone)
        seeds: Any = [int(s) for s in self.seeds]  # Gymnasium's own type knows only the single one
        try:
            seen, infos = self.env.reset(seed=seeds)
        except (TypeError, gymnasium.error.Error):  # a vector environment with one generator takes one seed
            self._takes_seeds = False
            seen, infos = self.env.reset(seed=seeds[0])
        infos = self._with_masks(infos)
        self._between, self._gives_masks = nobody, "action_mask" in infos
        obs, masks, rewards = self._obs(seen), self._masks(infos, everyone), np.zeros(self.num_envs, dtype=np.float32)
        now = self._led_to(obs, masks, rewards, nobody, nobody)
        return StreamStep(now, now, everyone)

    def step(self, actions: NDArray[np.int64]) -> StreamStep:
        seen, rewards, terminated, truncated, infos = self.env.step(self._own.env_actions(actions))
        infos = self._with_masks(infos)
        running = ~self._between
        terminated = np.asarray(terminated, dtype=np.bool_) & running
        ended = (terminated | np.asarray(truncated, dtype=np.bool_)) & running
        rewards = self._finite(np.where(running, rewards, 0.0), "a reward")
        obs = self._obs(seen)
        masks = self._masks(infos, np.ones_like(ended) if self.autoreset is AutoresetMode.SAME_STEP else ~ended)
        final_obs, final_masks = obs, masks
        if self.autoreset is AutoresetMode.NEXT_STEP:
            began, self._between = self._between, ended
            self._draw_seeds(began)
        else:
            began = ended
            self._draw_seeds(began)
            if ended.any():
                final_obs, final_masks = obs.copy(), masks.copy()
                if self.autoreset is AutoresetMode.SAME_STEP:
                    self._read_final(infos, ended, final_obs, final_masks)
                else:
                    self._reset(ended, obs, masks)
        led_to = self._led_to(final_obs, final_masks, rewards, terminated, ended)
        now = led_to._replace(obs=obs, masks=ActionMasks.of_flat(self.spaces.action, masks))
        return StreamStep(led_to, now, began)

    def _read_final(
        self, infos: dict[str, Any], ended: Flags, final_obs: NDArray[np.float32], final_masks: NDArray[np.bool_]
    ) -> None:
        """What ended episodes left, which SAME_STEP hides in the infos, into their rows."""
        if "final_obs" not in infos:
            raise UserError(
                f'{self.env_id} resets in the step that ends an episode, and gave no info["final_obs"]: give the last '
                "observation of every episode there"
            )
        if "action_mask" in infos.get("final_info", {}):
            final_masks[ended] = self._masks(infos["final_info"], np.zeros_like(ended), ended)[ended]
        else:
            final_masks[ended] = True
        for e in map(int, np.flatnonzero(ended)):
            with np.errstate(over="ignore"):
                flat = self._own.flat_obs(infos["final_obs"][e])
            final_obs[e] = self._finite(flat, "a final observation")

    def _reset(self, rows: Flags, obs: NDArray[np.float32], masks: NDArray[np.bool_]) -> None:
        """New episodes, each by its own seed, into their rows."""
        each: Any = [int(s) if new else None for s, new in zip(self.seeds, rows, strict=True)]
        seen, infos = self.env.reset(seed=each if self._takes_seeds else None, options={"reset_mask": rows.copy()})
        obs[rows] = self._obs(seen)[rows]
        masks[rows] = self._masks(self._with_masks(infos), rows, rows)[rows]

    def _draw_seeds(self, rows: Flags) -> None:
        for e in map(int, np.flatnonzero(rows)):
            self.seeds[e] = self.seed_of(e)

    def _obs(self, seen: Any) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            obs = self._own.flat_batch(seen, self.num_envs)
        return self._finite(obs, "an observation")

    def _finite(self, given: NDArray[Any], what: str) -> NDArray[np.float32]:
        """As float32, where a larger number than it holds is infinite."""
        with np.errstate(over="ignore"):
            cast = given.astype(np.float32, copy=False)
        if not np.isfinite(cast).all():
            raise UserError(
                f"{self.env_id} gave {what} that is NaN, infinite or too large for float32: it cannot be trained on"
            )
        return cast

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        """What the environment's own `action_masks()` says goes where Gymnasium would have put it."""
        if self._masks_of_all is None or "action_mask" in infos:
            return infos
        return infos | {"action_mask": self._masks_of_all(), "_action_mask": np.ones(self.num_envs, dtype=np.bool_)}

    def _masks(self, infos: dict[str, Any], needed: Flags, rows: Flags | None = None) -> NDArray[np.bool_]:
        """`[E, A]`, read from `rows` or from all of them. An environment without masks allows everything, and so does
        a mask that allows nothing where nothing is decided any more. Raises `UserError` where a mask is `needed` and
        missing or useless."""
        masks = np.ones((self.num_envs, self.spaces.action.flat_size), dtype=np.bool_)
        if ("action_mask" in infos) > self._gives_masks:
            raise UserError(f"{self.env_id} gave an action mask at a step and none at its reset: {EVERY_MASK}")
        if not self._gives_masks:
            return masks
        given = np.zeros_like(needed)
        if "action_mask" in infos:
            each, given = self._rows(infos)
            for e in map(int, np.flatnonzero(given if rows is None else given & rows)):
                masks[e] = self._own.flat_mask(each[e])
        if (needed & ~given).any():
            raise UserError(f"{self.env_id} gave an action mask at some observations and none at others: {EVERY_MASK}")
        for head, part in zip(self.spaces.action.names, self.spaces.action.split(masks), strict=True):
            empty = ~part.any(1)
            if (empty & needed).any():
                raise UserError(f"{self.env_id} gave a mask that leaves {head} no legal choice in mid-episode")
            part[empty] = True
        return masks

    def _rows(self, infos: dict[str, Any]) -> tuple[Any, Flags]:
        """One mask for each environment, and which of them were given. Gymnasium's own loops say so in
        `_action_mask`; a native vector environment that does not say gives all of them."""
        each = infos["action_mask"]
        if isinstance(each, list | tuple):  # an array of two dimensions in it would be one head of all environments
            right = len(each) == self.num_envs and all(getattr(mask, "ndim", 1) == 1 for mask in each)
        else:
            each = np.asarray(each)
            right = each.ndim > 0 and len(each) == self.num_envs
        if not right:
            raise UserError(
                f"{self.env_id} gave action masks that are not one row for each of its {self.num_envs} environments: "
                f"give an array [{self.num_envs}, {self.spaces.action.flat_size}]"
            )
        if "_action_mask" in infos:
            return each, np.asarray(infos["_action_mask"], dtype=np.bool_)
        return each, np.array([mask is not None for mask in each], dtype=np.bool_)

    def _led_to(
        self,
        obs: NDArray[np.float32],
        masks: NDArray[np.bool_],
        rewards: NDArray[np.float32],
        terminated: Flags,
        ended: Flags,
    ) -> FleetStep:
        return FleetStep(
            obs,
            np.zeros((self.num_envs, 0), dtype=np.int64),
            ActionMasks.of_flat(self.spaces.action, masks),
            rewards,
            terminated,
            ended & ~terminated,  # never both: terminated wins
            tuple(EndReason.ENVIRONMENT if end else None for end in ended),
            ({},) * self.num_envs,
        )
