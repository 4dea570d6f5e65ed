"""Time limits: the values that a table learns, with a constant reward, from the episodes that a rollout sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.episode import host_episode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import NeverGrow
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rollout.wave import Provenance, run_wave
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason, Episode
from learner.ppo.gae import gae
from tests.support.env.reference_env import ReferenceFleet
from tests.support.env.walks import WAIT, tiny_reference

R, GAMMA, T = 2.0, 0.9, 6
CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=T, inner_steps=1, batch_size=16)


class TabularCritic(NeverGrow):
    """A policy that waits; its value is a table over the observed time."""

    table: NDArray[np.float64]

    def cells(self, obs: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.round(obs[..., 0] * T).astype(np.int64)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        decision, state = super().act(obs, blueprint_indices, masks, state, noise, deterministic)
        values = self.table[self.cells(obs)].astype(np.float32)
        return decision._replace(values=values, baseline_values=values, bootstrap_values=values), state


def learn(config: EnvConfig, waves: int) -> tuple[NDArray[np.float64], list[Episode]]:
    """Return the table after `waves` of policy evaluation with lambda-returns."""
    fleet = SeedTrainingFleet(config, 4, 0)
    critic = TabularCritic(fleet.spaces)
    critic.table = np.zeros(T + 1)
    episodes: list[Episode] = []
    for wave in range(waves):
        episodes = run_wave(fleet, critic, range(4 * wave, 4 * wave + 4), Provenance(0, 0, 8, 0))
        targets: dict[int, list[float]] = {}
        for e in episodes:
            rewards, values = (torch.from_numpy(x).double()[None] for x in (e.rewards, e.values))
            ended, beyond = torch.tensor([e.terminated]), torch.tensor([e.bootstrap_value], dtype=torch.float64)
            returns = gae(rewards, values, torch.ones_like(rewards) > 0, ended, beyond, GAMMA, 0.97).returns[0]
            for cell, value in zip(critic.cells(e.obs).tolist(), returns.tolist(), strict=True):
                targets.setdefault(cell, []).append(value)
        for cell, found in targets.items():
            critic.table[cell] = np.mean(found)
    return critic.table, episodes


@pytest.fixture
def constant_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_episode, "objective_reward", lambda *args: R)


@pytest.mark.usefixtures("constant_reward")
def test_a_terminated_horizon_has_the_value_of_the_remaining_steps() -> None:
    table, episodes = learn(CONFIG, 12)
    left = np.arange(T, 0, -1)
    assert table[:T] == pytest.approx(R * (1 - GAMMA**left) / (1 - GAMMA), rel=1e-4)
    assert {(e.terminated, e.bootstrap_value, e.end_reason) for e in episodes} == {(True, 0.0, EndReason.HORIZON)}


@pytest.mark.usefixtures("constant_reward")
@pytest.mark.parametrize("horizon", [T, (T // 2, T)])
def test_a_truncated_horizon_has_the_value_of_an_infinite_future(horizon: int | tuple[int, int]) -> None:
    hidden = replace(CONFIG, time_limit="truncated", observe_time=False, horizon_epochs=horizon)
    table, episodes = learn(hidden, 40)
    assert table[0] == pytest.approx(R / (1 - GAMMA), rel=1e-3)
    assert not table[1:].any()  # with hidden time there is one entry
    assert all(e.truncated and not e.terminated and e.end_reason is EndReason.HORIZON for e in episodes)


def test_hidden_horizons_are_drawn_from_the_range() -> None:
    config = replace(CONFIG, horizon_epochs=(3, 6), observe_time=False)
    lengths = []
    for fleet in (SeedTrainingFleet(config, 24, 0), ReferenceFleet(config, 24, 0)):
        episodes = run_wave(fleet, NeverGrow(fleet.spaces), range(24), Provenance(0, 0, 8, 0))
        by_seed = sorted((e.seed, len(e)) for e in episodes)
        lengths.append([n for _, n in by_seed])
        assert all(not e.obs[:, 0].any() for e in episodes)
    assert lengths[0] == lengths[1]
    assert set(lengths[0]) == {3, 4, 5, 6}


def test_a_panic_on_the_last_epoch_terminates_even_with_a_truncated_limit() -> None:
    env = tiny_reference(horizon_epochs=4, time_limit="truncated", observe_time=False)
    for poisoned in (False, True):
        env.reset(seed=0)
        for _ in range(3):
            env.step(WAIT)
        if poisoned:
            env.network.group.params["in.w"].data.fill_(float("nan"))
        _, reward, terminated, truncated, info = env.step(WAIT)
        assert (terminated, truncated) == (poisoned, not poisoned)
        assert info["end_reason"] is (EndReason.GOVERNOR if poisoned else EndReason.HORIZON)
    assert float(reward) == pytest.approx(-5.0)  # nothing grew, so there is only the penalty
