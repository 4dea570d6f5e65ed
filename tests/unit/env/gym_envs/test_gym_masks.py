"""Masks and resets of vector environments: every declared form is honoured, anything else is refused in one line.

`Scripted` asserts that each action is legal, so a walk that only takes actions which the fleet shows as legal fails as
soon as a mask is lost or belongs to another step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation

from actors.errors import UserError
from actors.gym.fleet import GymFleet
from actors.gym.spaces import GymSpaces
from actors.gym.unified import UnifiedEnv
from tests.support.env.gym_envs import Scripted

WIDTH = 3
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def walk(fleet: GymFleet, steps: int = 60) -> int:
    """Random legal actions; returns how many choices were illegal on the way."""
    rng, shown, illegal = np.random.default_rng(1), fleet.start(), 0
    for _ in range(steps):
        masks = shown.current.masks.op
        illegal += int((~masks).sum())
        shown = fleet.step(np.array([[rng.choice(np.flatnonzero(row))] for row in masks]))
    return illegal


def fleet_of(
    make: Callable[[], Any], mode: AutoresetMode = DISABLED, env_class: type[SyncVectorEnv] = SyncVectorEnv
) -> GymFleet:
    return GymFleet("own", env_class([make] * WIDTH, autoreset_mode=mode), int)


def scripted(env_class: type[SyncVectorEnv], mode: AutoresetMode, **kwargs: Any) -> GymFleet:
    return fleet_of(lambda: Scripted(**kwargs), mode, env_class)


class Native(SyncVectorEnv):
    """Gives masks without saying for which environments, as a vector environment does that computes them in one go."""

    form: Callable[[Any], Any] = staticmethod(lambda masks: masks)

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = super().reset(**kwargs)
        return obs, self._native(infos)

    def step(self, actions: Any) -> Any:
        *shown, infos = super().step(actions)
        return *shown, self._native(infos)

    def _native(self, infos: dict[str, Any]) -> dict[str, Any]:
        masks = self.form(np.stack([env.unwrapped._mask() for env in self.envs]))
        final = {name: infos[name] for name in ("final_obs", "final_info") if name in infos}
        return {"action_mask": masks} | final


class OwnMethod(SyncVectorEnv):
    """Has `action_masks()` for all environments at once."""

    def action_masks(self) -> Any:
        return np.stack([env.unwrapped._mask() for env in self.envs])


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("env_class", [Native, OwnMethod])
def test_masks_of_native_vector_environments_are_in_force(env_class: type[SyncVectorEnv], mode: AutoresetMode) -> None:
    fleet = scripted(env_class, mode, sizes=(4,), masks="method" if env_class is OwnMethod else "info")
    assert walk(fleet) > 60


class Late(Scripted):
    """Gives no mask at a reset, where every action is legal; or only not at that of one seed."""

    def __init__(self, one: bool) -> None:
        super().__init__(sizes=(4,), masks="info")
        self.one = one

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs, info if self.one and kwargs["seed"] != 1 else {}

    def _mask(self) -> Any:
        return super()._mask() if self.count or self.one else np.ones(4, dtype=np.bool_)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    ("one", "words"),
    [(False, "an action mask at a step but not at its reset"), (True, "at some observations but not at others")],
)
def test_masks_that_appear_only_after_a_reset_are_refused(one: bool, words: str, mode: AutoresetMode) -> None:
    fleet = fleet_of(lambda: UnifiedEnv(Late(one), "late"), mode)
    with pytest.raises(UserError, match=words) as refusal:
        walk(fleet)
    assert "give a mask with every observation, all ones if every action is legal" in str(refusal.value)


class OneGenerator(OwnMethod):
    """Takes a single seed, as Gymnasium's base class documents it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if isinstance(seed, list):
            raise TypeError("seed is one number")
        return super().reset(seed=seed, options=options)


def test_a_single_seed_is_enough_where_we_reset() -> None:
    assert walk(scripted(OneGenerator, DISABLED, sizes=(4,), masks="method")) > 60


class IgnoresTheMask(SyncVectorEnv):
    """Resets all environments where `reset_mask` names some of them."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=[None if seed is None else s or 0 for s in seed], options=None)


class HidesTheEnd(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        *shown, _ = super().step(actions)
        return *shown, {}


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("left_out", [True, False])
def test_masks_of_a_space_without_choices_have_an_entry_per_dimension_or_none(dimensions: int, left_out: bool) -> None:
    own = GymSpaces("box", spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (dimensions,), np.float32))
    mask = own.flat_mask(np.ones(0 if left_out else dimensions))
    assert mask.shape == (own.spaces.action.flat_size,)
    assert mask.all()
    assert np.array_equal(own.flat_mask(mask), mask)  # a vector environment's fleet flattens again
    with pytest.raises(UserError, match=r"mask of 7 entries for heads of \[1(, 1)?\]"):
        own.flat_mask(np.ones(7))


class MaskInObservation(Scripted):
    """RLlib's form. `Scripted` asserts that actions are legal."""

    def __init__(
        self, key: str = "observations", mask: spaces.Space[Any] | None = None, **extra: spaces.Space[Any]
    ) -> None:
        super().__init__(sizes=(4,), masks="method")
        del self.action_masks
        self.key, self.extra = key, extra
        mask = mask or spaces.Box(0, 1, (4,), np.int8)
        self.observation_space = spaces.Dict({"action_mask": mask, key: self.observation_space} | extra)

    def _look(self) -> Any:
        more = {key: space.sample() for key, space in self.extra.items()}
        return {"action_mask": self._mask().astype(np.int8), self.key: super()._look()} | more


def in_observations(make: Callable[[], Any]) -> GymFleet:
    return fleet_of(lambda: UnifiedEnv(make(), "rllib"))


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: MaskInObservation("obs"), 4),
        (lambda: MaskInObservation(mask=spaces.MultiBinary(4), speed=spaces.Box(0, 1, (2,))), 6),
    ],
)
def test_masks_in_observations_are_in_force_and_not_observed(make: Callable[[], Any], size: int) -> None:
    fleet = in_observations(make)
    assert fleet.spaces.obs_size == size
    assert walk(fleet) > 60


class PerHead(Native):
    form = staticmethod(lambda masks: (masks[:, :2], masks[:, 2:]))


class Forbids(Scripted):
    """Allows nothing."""

    def _mask(self) -> Any:
        return np.zeros(4, dtype=np.bool_)


def undeclared() -> SyncVectorEnv:
    env = SyncVectorEnv([Scripted] * WIDTH)
    del env.autoreset_mode
    env.metadata = {"autoreset_mode": "sometimes"}
    return env


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: scripted(PerHead, SAME_STEP, sizes=(4,), masks="info"),
            "not one row for each of its 3 environments: give an array of shape [3, 4]",
        ),
        (
            lambda: GymFleet("undeclared", undeclared(), int),
            "to one of AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED",
        ),
        (lambda: scripted(IgnoresTheMask, DISABLED), "reset environments that options['reset_mask'] excludes: "),
        (lambda: scripted(HidesTheEnd, SAME_STEP), 'gave no info["final_obs"]'),
        (lambda: fleet_of(lambda: Forbids((4,), masks="info")), "an action mask without a legal choice for action"),
        (
            lambda: in_observations(lambda: MaskInObservation(mask=spaces.Box(0, 1, (3,)))),
            "an action mask of 3 entries for heads of [4]",
        ),
        (
            lambda: in_observations(lambda: MaskInObservation(mask=spaces.Box(-1e9, 0, (4,)))),
            "a mask with other numbers than 0 and 1",
        ),
        (
            lambda: in_observations(lambda: MaskInObservation(player=spaces.Dict(action_mask=spaces.MultiBinary(4)))),
            'give it at the top level of the observation of a single environment, or as info["action_mask"]',
        ),
        (
            lambda: in_observations(lambda: FlattenObservation(MaskInObservation())),
            "leave the wrapper out, or give the mask as info",
        ),
        (lambda: fleet_of(MaskInObservation, SAME_STEP), 'as info["action_mask"]'),
    ],
)
def test_what_an_environment_does_otherwise_is_refused_in_one_line(make: Callable[[], GymFleet], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        walk(make())
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
