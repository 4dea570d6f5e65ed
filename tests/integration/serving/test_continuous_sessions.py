"""Continuous actions over gRPC: clients get the values of the environment, and episodes record their cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from actors.config import PolicyConfig
from actors.gym.spaces import GymSpaces
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, to_weights
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.serve_env import serve_env
from actors.types.actions import ActionMasks
from actors.types.weights import WeightSet
from tests.support.env.gym_envs import Continuous
from tests.support.serving.servers import FakeWeightStore
from tests.support.serving.training_sessions import endpoint

pytestmark = pytest.mark.integration

BOX = spaces.Box(np.array([-2.0, 0.0, -np.inf]), np.array([2.0, 0.5, np.inf]), dtype=np.float64)
MIXED = spaces.Dict({"gear": spaces.Discrete(3, start=1), "wheel": BOX})


class Recorded(Continuous):
    """Records its actions."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space, self.taken = action_space, list[Any]()

    def step(self, action: Any) -> Any:
        self.taken.append(action)
        return super().step(action)


def policy(env: Recorded, squash: bool = False, seed: int = 0) -> tuple[GymSpaces, WeightSet]:
    converter = GymSpaces("Recorded", env.observation_space, env.action_space, squash)
    torch.manual_seed(seed)
    config = PolicyConfig(hidden_size=16, encoder_size=8, head_size=8, log_std="state", initial_log_std=0.5)
    return converter, to_weights(FactoredRecurrentActorCritic(converter.spaces, config), 1, 1, 8)


def test_an_environment_gets_values_and_the_episode_records_cells() -> None:
    env = Recorded(MIXED)
    converter, weights = policy(env)
    with endpoint(FakeWeightStore(weights)) as e:
        serve_env(env, e.address, episodes=1, seed=3)
        (episode,) = e.episodes(1)
    wheels = np.array([a["wheel"] for a in env.taken])
    cells = episode.actions[:, -3:].astype(np.float64)
    u = cells / 65536.0 - 32768.0
    expected = np.stack([2 * u[:, 0], 0.25 * (u[:, 1] + 1), u[:, 2]], -1)
    np.testing.assert_allclose(wheels, np.clip(expected, BOX.low, BOX.high), atol=1e-12)
    assert (expected != np.clip(expected, BOX.low, BOX.high)).any()  # the bounds are reached
    assert [a["gear"] for a in env.taken] == (episode.actions[:, 0] + 1).tolist()
    network = from_weights(weights)
    state, size = network.initial_state(1), converter.spaces.action.flat_size
    masks = ActionMasks.of_flat(converter.spaces.action, np.ones((1, size), np.bool_))
    noise, none = np.zeros((1, size)), np.zeros((1, 0), np.int64)
    for t in range(6):  # an independent density: the Gaussian of the network's mean at each step
        greedy, state = network.act(episode.obs[t : t + 1], none, masks, state, noise, True)
        mean = torch.from_numpy(greedy.actions[:, -3:] / 65536.0 - 32768.0)
        own = torch.distributions.Normal(mean, mean.new_tensor(_deviations(greedy)))
        density = own.log_prob(torch.from_numpy(u[t : t + 1])) - 16 * np.log(2.0)
        np.testing.assert_allclose(episode.log_probs[t, -3:], density[0], atol=2e-3)


@pytest.mark.parametrize("squash", [False, True])
def test_a_client_gets_values_within_the_bounds(squash: bool) -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-2.0, 2.0, (2,), np.float64)))
    converter, weights = policy(Recorded(space), squash)
    obs = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    with endpoint(FakeWeightStore(weights)) as e, PolicyClient(e.address) as client:
        with client.episode(5, converter.spaces) as episode:
            for row in obs:
                action = episode.act(row, [True, False, True])  # a mask of the choices alone
                episode.reward(0.0)
                u = episode.answer.action[1:] / 65536.0 - 32768.0
                np.testing.assert_allclose(action[1:], 2 * (np.tanh(u) if squash else np.clip(u, -1, 1)), atol=1e-12)
                assert action[0] in (0, 2)
        (shipped,) = e.episodes(1)
        with client.open(converter.spaces, seed=5) as session:
            masks = ActionMasks.of_flat(converter.spaces.action, np.ones(5, np.bool_))
            answer = session.step(obs[0], np.zeros(0, np.int64), masks)
    assert len(shipped.actions) == 20
    assert answer.continuous.shape == (2,)
    assert np.abs(answer.continuous).max() <= 2.0


def _deviations(greedy: Any) -> NDArray[np.float64]:
    """Read the standard deviations off the log-probs of the means, whose densities are 1 / (sqrt(2 pi) std)."""
    return np.exp(-(greedy.log_probs[:, -3:].astype(np.float64) + 16 * np.log(2.0)) - 0.5 * np.log(2 * np.pi))
