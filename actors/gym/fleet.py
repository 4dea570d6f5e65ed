"""`GymFleet`: E Gymnasium environments, each of which starts its next episode when one has ended.

Unlike the seed fleet, whose environments start and end an episode together, these are independent. A step returns both
the outcome of the actions and the observations to act on next, which differ where an episode ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from actors.errors import UserError
from actors.gym.spaces import GymSpaces
from actors.gym.unified import close_quietly
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason
from actors.types.fleet_step import FleetStep

Flags = NDArray[np.bool_]  # [E]
SeedOf = Callable[[int], int]
"""Returns the seed of an environment's next episode."""


class StreamStep(NamedTuple):
    """One step of a `GymFleet`."""

    outcome: FleetStep  # of the actions; of those whose episode ended, the final observation and its masks
    current: FleetStep  # observations and masks to act on
    began: Flags  # environments whose `current` is the first observation of an episode
    invalid: Flags  # environments in whose episode of `outcome` a number cannot be trained on, now or before


EVERY_MASK = "give a mask with every observation, all ones if every action is legal"


def autoreset_mode(env_id: str, env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode that a vector environment declares. Raises `UserError` if it declares none."""
    # Metadata is shared by all environments of a class, so an attribute of the instance takes precedence.
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

    With DISABLED, each episode is reset with its own seed and is a function of that seed and its actions. With
    SAME_STEP and NEXT_STEP, and if the environment only takes a single seed, only the first reset is seeded; the seeds
    of later episodes only identify them and determine their policy noise.

    A number in a reward or an observation that is NaN, infinite or too large for float32 counts as 0, and makes the
    episode invalid. With DISABLED, such an episode ends at once.

    An environment must give an action mask with every observation that is acted on, or with none. Anything else raises
    `UserError`, because a missing mask would allow illegal actions.
    """

    def __init__(self, env_id: str, env: VectorEnv[Any, Any, Any], seed_of: SeedOf, squash: bool = False) -> None:
        self.env_id, self.env, self.seed_of = env_id, env, seed_of
        self.num_envs = env.num_envs
        self._converter = GymSpaces(env_id, env.single_observation_space, env.single_action_space, squash)
        self.spaces = self._converter.spaces
        self.autoreset = autoreset_mode(env_id, env)
        self.seeds = np.zeros(self.num_envs, dtype=np.int64)  # [E] of the current episodes
        self._between = np.zeros(self.num_envs, dtype=np.bool_)  # NEXT_STEP: environments that the next step resets
        self._invalid = np.zeros(self.num_envs, dtype=np.bool_)  # environments whose current episode is invalid
        self.fault = ""  # what the last invalid episode held
        self._gives_masks = False
        self._takes_seeds = True  # one seed for each environment, not a single one for all
        action_masks: Callable[[], Any] | None = getattr(env.unwrapped, "action_masks", None)
        self._action_masks = action_masks  # sb3-contrib's convention, implemented by the vector environment

    def start(self) -> StreamStep:
        """Reset all environments."""
        everyone, nobody = np.ones(self.num_envs, dtype=np.bool_), np.zeros(self.num_envs, dtype=np.bool_)
        self._draw_seeds(everyone)
        seeds: Any = [int(s) for s in self.seeds]  # Gymnasium's annotation only allows a single seed
        try:
            raw_obs, infos = self.env.reset(seed=seeds)
        except (TypeError, gymnasium.error.Error):  # a vector environment with one generator takes one seed
            self._takes_seeds = False
            raw_obs, infos = self.env.reset(seed=seeds[0])
        infos = self._with_masks(infos)
        self._between, self._gives_masks = nobody, "action_mask" in infos
        (obs, self._invalid), masks = self._obs(raw_obs), self._masks(infos, everyone)
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        current = self._fleet_step(obs, masks, rewards, nobody, nobody)
        return StreamStep(current, current, everyone, nobody)

    def close(self) -> None:
        """Close all environments, even if closing one fails."""
        close_quietly(self.env)

    def step(self, actions: NDArray[np.int64]) -> StreamStep:
        """Step all environments with `actions [E, H]`; those of environments between two episodes are ignored."""
        raw_obs, rewards, terminated, truncated, infos = self.env.step(self._converter.env_actions(actions))
        infos = self._with_masks(infos)
        running, same_step = ~self._between, self.autoreset is AutoresetMode.SAME_STEP
        terminated = np.asarray(terminated, dtype=np.bool_) & running
        ended = (terminated | np.asarray(truncated, dtype=np.bool_)) & running
        each = np.asarray(rewards, dtype=np.float64)
        if each.size != self.num_envs:  # some give [E, 1]
            raise UserError(f"{self.env_id} gave rewards of shape {list(each.shape)}: give shape [{self.num_envs}]")
        rewards, bad_rewards = self._finite(np.where(running, each.reshape(self.num_envs), 0.0), "a reward")
        obs, bad_obs = self._obs(raw_obs)
        invalid = self._invalid | bad_rewards | (bad_obs & running & ~(ended & same_step))
        if self.autoreset is AutoresetMode.DISABLED:
            ended |= invalid
        masks = self._masks(infos, np.ones_like(ended) if same_step else ~ended)
        final_obs, final_masks = obs, masks
        began, next_step = ended, self.autoreset is AutoresetMode.NEXT_STEP
        if next_step:
            began, self._between = self._between, ended
        self._draw_seeds(began)
        if ended.any() and not next_step:
            final_obs, final_masks = obs.copy(), masks.copy()
            if same_step:
                invalid |= self._read_final(infos, ended, final_obs, final_masks)
            else:
                bad_obs = self._reset(ended, obs, masks)
        self._invalid = np.where(began, bad_obs, invalid)
        outcome = self._fleet_step(final_obs, final_masks, rewards, terminated, ended)
        current = outcome._replace(obs=obs, masks=ActionMasks.of_flat(self.spaces.action, masks))
        return StreamStep(outcome, current, began, invalid)

    def _read_final(
        self, infos: dict[str, Any], ended: Flags, final_obs: NDArray[np.float32], final_masks: NDArray[np.bool_]
    ) -> Flags:
        """Copy the final observations and masks, which SAME_STEP puts into the infos, of environments that ended.
        Return the ones whose final observation cannot be trained on."""
        if "final_obs" not in infos:
            raise UserError(
                f'{self.env_id} resets in the step that ends an episode but gave no info["final_obs"]: give the last '
                "observation of every episode there"
            )
        if "action_mask" in infos.get("final_info", {}):
            final_masks[ended] = self._masks(infos["final_info"], np.zeros_like(ended), ended)[ended]
        else:
            final_masks[ended] = True
        with np.errstate(over="ignore"):
            for e in map(int, np.flatnonzero(ended)):
                final_obs[e] = self._converter.flat_obs(infos["final_obs"][e])
        final_obs[:], bad = self._finite(final_obs, "a final observation")
        return bad

    def _reset(self, envs: Flags, obs: NDArray[np.float32], masks: NDArray[np.bool_]) -> Flags:
        """Reset `envs` with their seeds and write the first observations and masks in place. Return the environments
        whose first observation cannot be trained on."""
        seeds: Any = [int(s) if new else None for s, new in zip(self.seeds, envs, strict=True)]
        raw_obs, infos = self.env.reset(seed=seeds if self._takes_seeds else None, options={"reset_mask": envs.copy()})
        fresh, bad = self._obs(raw_obs)
        if not np.array_equal(fresh[~envs], obs[~envs]):
            raise UserError(
                f"{self.env_id} reset environments that options['reset_mask'] excludes: reset only those that it "
                "names and return the last observations of the others, or reset automatically and declare "
                "AutoresetMode.NEXT_STEP or SAME_STEP"
            )
        obs[envs] = fresh[envs]
        masks[envs] = self._masks(self._with_masks(infos), envs, envs)[envs]
        return bad

    def _draw_seeds(self, envs: Flags) -> None:
        for e in map(int, np.flatnonzero(envs)):
            self.seeds[e] = self.seed_of(e)

    def _obs(self, raw_obs: Any) -> tuple[NDArray[np.float32], Flags]:
        with np.errstate(over="ignore"):
            obs = self._converter.flat_batch(raw_obs, self.num_envs)
        return self._finite(obs, "an observation")

    def _finite(self, array: NDArray[Any], what: str) -> tuple[NDArray[np.float32], Flags]:
        """Cast to float32, with 0 for NaN, infinity and numbers that exceed float32. Return which environments had
        any."""
        with np.errstate(over="ignore"):
            cast = array.astype(np.float32, copy=False)
        finite = np.isfinite(cast)
        if finite.all():
            return cast, np.zeros(self.num_envs, dtype=np.bool_)
        self.fault = f"{self.env_id} gave {what} that is NaN, infinite or too large for float32"
        bad: Flags = np.logical_not(finite.reshape(self.num_envs, -1).all(axis=1))
        return np.where(finite, cast, np.float32(0)), bad

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Add the result of the environment's own `action_masks()` to the infos, in Gymnasium's form."""
        if self._action_masks is None or "action_mask" in infos:
            return infos
        return infos | {"action_mask": self._action_masks(), "_action_mask": np.ones(self.num_envs, dtype=np.bool_)}

    def _masks(self, infos: dict[str, Any], needed: Flags, envs: Flags | None = None) -> NDArray[np.bool_]:
        """Return masks `[E, A]`, reading those of `envs` (default: all).

        Everything is legal in an environment without masks. Raises `UserError` for a mask that is `needed` and missing
        or without a legal choice; where it is not needed, because the episode has ended, such a mask is all ones.
        """
        masks = np.ones((self.num_envs, self.spaces.action.flat_size), dtype=np.bool_)
        if ("action_mask" in infos) > self._gives_masks:
            raise UserError(f"{self.env_id} gave an action mask at a step but not at its reset: {EVERY_MASK}")
        if not self._gives_masks:
            return masks
        given = np.zeros_like(needed)
        if "action_mask" in infos:
            each, given = self._given_masks(infos)
            for e in map(int, np.flatnonzero(given if envs is None else given & envs)):
                masks[e] = self._converter.flat_mask(each[e])
        if (needed & ~given).any():
            raise UserError(f"{self.env_id} gave action masks at some observations but not at others: {EVERY_MASK}")
        for head, part in zip(self.spaces.action.names, self.spaces.action.split(masks), strict=True):
            empty = ~part.any(1)
            if (empty & needed).any():
                raise UserError(
                    f"{self.env_id} gave an action mask without a legal choice for {head}: allow at least one"
                )
            part[empty] = True
        return masks

    def _given_masks(self, infos: dict[str, Any]) -> tuple[Any, Flags]:
        """Return one mask per environment, and a flag per environment whether its mask was given.

        Gymnasium's vector environments set the flags as `_action_mask`. Without it, all masks count as given.
        """
        each = infos["action_mask"]
        if isinstance(each, list | tuple):  # a two-dimensional item would be one head's mask of all environments
            valid = len(each) == self.num_envs and all(getattr(mask, "ndim", 1) == 1 for mask in each)
        else:
            each = np.asarray(each)
            valid = each.ndim > 0 and len(each) == self.num_envs
        if not valid:
            raise UserError(
                f"{self.env_id} gave action masks that are not one row for each of its {self.num_envs} environments: "
                f"give an array of shape [{self.num_envs}, {self.spaces.action.flat_size}]"
            )
        if "_action_mask" in infos:
            return each, np.asarray(infos["_action_mask"], dtype=np.bool_)
        return each, np.array([mask is not None for mask in each], dtype=np.bool_)

    def _fleet_step(
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
            ended & ~terminated,  # not both: termination takes precedence
            tuple(EndReason.ENVIRONMENT if end else None for end in ended),
            ({},) * self.num_envs,
        )
