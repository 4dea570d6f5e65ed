"""The Gymnasium interface: registration, checker, rendering; and the vector environment equals a loop over one."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv

import tamiyo  # noqa: F401, registers the environment
from actors.blueprints.family import blueprint_index
from actors.config import ConfigError
from actors.env.rendering.palette import OPS
from actors.env.vector_env import SeedTrainingVectorEnv
from actors.slots.lifecycle import IllegalAction, SeedAction
from actors.types.actions import Op
from actors.types.episode import SEED_TRAINING
from tests.support.env import walks
from tests.support.env.fleets import break_params
from tests.support.env.walks import act

ROOT = Path(__file__).parents[4]
TINY = walks.TINY | {"tasks": ("spirals", "wine"), "horizon_epochs": 6}


def many(num_envs: int, **settings: Any) -> SeedTrainingVectorEnv:
    return gymnasium.make_vec(SEED_TRAINING, num_envs=num_envs, **TINY | settings)


def loop(num_envs: int, **settings: Any) -> VectorEnv[Any, Any, Any]:
    """Make Gymnasium's `SyncVectorEnv` of single environments."""
    how = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
    return gymnasium.make_vec(SEED_TRAINING, num_envs=num_envs, **how, **TINY | settings)


@pytest.mark.parametrize("profile", ["tamiyo", "classic"])
def test_a_seed_action_means_the_same_as_its_array(profile: str) -> None:
    grow = SeedAction(Op.GERMINATE, slot=1, blueprint=blueprint_index("mlp_wide"), blend=2)
    seen = []
    for action in (grow, grow.as_array(profile)):
        env = gymnasium.make(SEED_TRAINING, profile=profile, **TINY)
        env.reset(seed=3)
        assert env.action_space.contains(grow.as_array(profile))
        obs, _, _, _, info = env.step(action)
        assert "illegal_action" not in info
        seen.append(obs)
    assert seen[0]["blueprint_indices"].tolist() == [-1, 6, -1, -1, -1]
    assert np.array_equal(seen[0]["obs"], seen[1]["obs"])


@pytest.mark.parametrize("profile", ["tamiyo", "classic"])
def test_a_list_of_seed_actions_is_a_batch(profile: str) -> None:
    envs = many(2, profile=profile)
    envs.reset(seed=0)
    obs, *_ = envs.step([SeedAction(Op.WAIT), SeedAction(Op.GERMINATE, slot=2, blueprint=3)])
    assert obs["blueprint_indices"].tolist() == [[-1] * 5, [-1, -1, 3, -1, -1]]


def test_an_op_that_the_profile_lacks_and_an_unknown_blueprint_are_refused() -> None:
    with pytest.raises(ConfigError, match="ADVANCE is not an op of the profile 'classic'"):
        SeedAction(Op.ADVANCE).as_array("classic")
    with pytest.raises(ConfigError, match="there is no blueprint 'wide': choose from norm, "):
        blueprint_index("wide")


@pytest.mark.parametrize("profile", ["tamiyo", "classic"])
def test_gymnasiums_environment_checker_passes(profile: str) -> None:
    env = gymnasium.make(SEED_TRAINING, profile=profile, **TINY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_importing_tamiyo_registers_and_loads_no_torch() -> None:
    code = "import sys, gymnasium, tamiyo; assert 'torch' not in sys.modules"
    code += (
        f"; assert {SEED_TRAINING!r} in gymnasium.registry; gymnasium.make('tamiyo:' + {SEED_TRAINING!r}).reset(seed=0)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"horizon_epochs": (3, 6), "inner_steps": (1, 2)},
        {"horizon_epochs": (3, 6), "time_limit": "truncated", "reference": "twin"},
    ],
)
def test_the_vector_environment_equals_gymnasiums_sync_vector_env(settings: dict[str, Any]) -> None:
    """Compare observations, rewards, ends and infos over several episodes of unequal length, with same-step reset."""
    fast, slow = many(5, **settings), loop(5, **settings)
    assert (fast.observation_space, fast.action_space) == (slow.observation_space, slow.action_space)
    assert fast.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    fast.action_space.seed(0)
    assert data_equivalence(fast.reset(seed=3), slow.reset(seed=3), exact=True)
    ends = 0
    for _ in range(20):
        actions = fast.action_space.sample()
        mine = fast.step(actions)
        assert data_equivalence(mine, slow.step(actions), exact=True)
        assert mine[0] in fast.observation_space
        ends += int((mine[2] | mine[3]).sum())
    assert ends >= 15


def test_after_a_panic_only_that_environment_is_reset() -> None:
    env = many(3)
    env.reset(seed=0)
    waits = np.zeros((3, 6), dtype=np.int64)
    env.step(waits)
    break_params(env.fleet, 1)
    seen, _, terminated, _, info = env.step(waits)
    assert terminated.tolist() == [False, True, False]
    assert info["final_info"]["end_reason"][1] == "governor"
    assert info["final_obs"][1]["obs"][0] == pytest.approx(2 / 6)
    assert seen["obs"][:, 0] == pytest.approx([2 / 6, 0.0, 2 / 6])


def test_strict_raises_and_names_the_environment() -> None:
    env = many(2, strict=True)
    env.reset(seed=0)
    with pytest.raises(IllegalAction, match="environment 1: PRUNE with"):
        env.step(np.stack([act(0), act(3, 0)]))


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_an_unknown_render_mode_is_rejected(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="give 'rgb_array' or None"):
        make(SEED_TRAINING, render_mode="human", **TINY)


def test_the_slot_timeline_is_drawn() -> None:
    env = gymnasium.make(SEED_TRAINING, render_mode="rgb_array", **TINY)
    env.reset(seed=0)
    before = env.render()
    env.step(act(1, 0, 3))
    after = env.render()
    assert before.shape == after.shape
    assert before.dtype == np.uint8
    color = tuple(bytes.fromhex(OPS["GERMINATE"][1:]))
    marked = [(picture == color).all(-1).sum() for picture in (before, after)]
    assert marked[0] < marked[1]  # once in the legend, and once more over its slot
    assert gymnasium.make(SEED_TRAINING, **TINY).unwrapped.render() is None
    envs = many(2, render_mode="rgb_array")
    envs.reset(seed=0)
    assert len(envs.render() or ()) == 2
