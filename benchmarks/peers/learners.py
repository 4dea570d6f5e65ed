"""Other learners of recurrent PPO on the same shapes: sb3-contrib's RecurrentPPO and RLlib's PPO learner with an LSTM.

Each is made once and then asked for whole updates of the same batch: advantages, batching, all passes.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

warnings.filterwarnings("ignore")


@dataclass(frozen=True)
class Shape:
    """One batch: `envs` streams of `steps` steps, with an episode's end every `episode_steps`, or nowhere."""

    obs_size: int = 16
    actions: int = 4
    features: int = 128  # what the LSTM reads
    hidden: int = 128
    head: int = 64
    envs: int = 8
    steps: int = 128
    episode_steps: int | None = None
    minibatch_steps: int = 128
    epochs: int = 10

    @property
    def batch_steps(self) -> int:
        return self.envs * self.steps


class NoiseEnv(gym.Env[NDArray[np.float32], int]):
    """Random observations and rewards; episodes of a fixed length."""

    def __init__(self, config: dict[str, Any]) -> None:
        shape: Shape = config["shape"]
        self.observation_space = gym.spaces.Box(-5, 5, (shape.obs_size,), np.float32)
        self.action_space = gym.spaces.Discrete(shape.actions)
        self.length, self.rng = shape.episode_steps or 10**9, np.random.default_rng(0)
        self.at = 0

    def _look(self) -> NDArray[np.float32]:
        return self.rng.standard_normal(self.observation_space.shape).clip(-5, 5).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self.at = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self._look(), float(self.rng.standard_normal()), self.at >= self.length, False, {}


class Encoder(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU())


def have_sb3() -> bool:
    return importlib.util.find_spec("sb3_contrib") is not None


def have_rllib() -> bool:
    return importlib.util.find_spec("ray") is not None and importlib.util.find_spec("ray.rllib") is not None


Update = Callable[[], None]
Prepare = Callable[[], Update]
"""Untimed: puts everything back, and returns the update to be timed."""


def sb3_learner(shape: Shape, device: str) -> tuple[Prepare, Any]:
    """RecurrentPPO with one shared LSTM. Where no episode ends, its batch holds no start, which is its fastest case."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import CallbackList
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Features(BaseFeaturesExtractor):
        def __init__(self, space: gym.spaces.Box, features_dim: int) -> None:
            super().__init__(space, features_dim)
            self.net = Encoder(space.shape[0], features_dim)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x)
            return out

    envs = DummyVecEnv([lambda: NoiseEnv({"shape": shape})] * shape.envs)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        learning_rate=2.5e-4,
        n_steps=shape.steps,
        batch_size=shape.minibatch_steps,
        n_epochs=shape.epochs,
        clip_range_vf=0.2,
        device=device,
        seed=0,
        policy_kwargs={
            "features_extractor_class": Features,
            "features_extractor_kwargs": {"features_dim": shape.features},
            "net_arch": {"pi": [shape.head], "vf": [shape.head]},
            "activation_fn": nn.ReLU,
            "lstm_hidden_size": shape.hidden,
            "shared_lstm": True,
            "enable_critic_lstm": False,
        },
    )
    _, callback = model._setup_learn(10**9)
    for _ in range(2):  # the first rollout starts episodes, the second continues them
        assert model.collect_rollouts(envs, callback or CallbackList([]), model.rollout_buffer, shape.steps)
    if shape.episode_steps is None:
        assert not model.rollout_buffer.episode_starts.any()
    full, last_values = model.rollout_buffer, torch.zeros(shape.envs)
    model._current_progress_remaining = 1.0

    def prepare() -> Update:
        model.rollout_buffer = copy.deepcopy(full)

        def update() -> None:
            model.rollout_buffer.compute_returns_and_advantage(last_values, np.zeros(shape.envs, dtype=bool))
            model.train()

        return update

    return prepare, model.policy


def rllib_learner(shape: Shape, device: str) -> Prepare:
    """RLlib's PPO learner with its own LSTM and `max_seq_len`; episodes as its env runner makes them."""
    with contextlib.redirect_stderr(io.StringIO()):
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
        from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    logging.getLogger("ray").setLevel(logging.ERROR)
    model = DefaultModelConfig(
        fcnet_hiddens=[shape.features],
        fcnet_activation="relu",
        use_lstm=True,
        lstm_cell_size=shape.hidden,
        head_fcnet_hiddens=[shape.head],
        head_fcnet_activation="relu",
        vf_share_layers=True,
    )
    config = (
        PPOConfig()
        .environment(NoiseEnv, env_config={"shape": shape})
        .env_runners(num_envs_per_env_runner=shape.envs, rollout_fragment_length=shape.steps)
        .learners(num_gpus_per_learner=1 if device == "cuda" else 0)
        .training(
            lr=2.5e-4,
            train_batch_size=shape.batch_steps,
            minibatch_size=shape.minibatch_steps,
            num_epochs=shape.epochs,
            grad_clip=0.5,
        )
        .rl_module(model_config=model)
    )
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_timesteps=shape.batch_steps, random_actions=False)
    runner.stop()
    learner = config.build_learner(env=NoiseEnv({"shape": shape}))
    learner.build()

    def prepare() -> Update:
        own = copy.deepcopy(episodes)

        def update() -> None:
            learner.update(
                episodes=own,
                timesteps={"num_env_steps_sampled_lifetime": shape.batch_steps},
                num_epochs=shape.epochs,
                minibatch_size=shape.minibatch_steps,
                shuffle_batch_per_epoch=True,
            )

        return update

    return prepare
