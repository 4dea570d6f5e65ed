"""sb3-contrib's RecurrentPPO on tasks with continuous actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from torch import nn

ROLLOUT_STEPS, ENVS = 1024, 4


class RecurrentPPORun:
    """One training. The settings are those of the agent for Pendulum without velocities that its authors publish
    (huggingface.co/sb3/ppo_lstm-PendulumNoVel-v1), with normalized observations."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], seed: int, budget_steps: int) -> None:
        from sb3_contrib import RecurrentPPO
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

        self.make, self.budget_steps = make, budget_steps
        self.envs = VecNormalize(DummyVecEnv([make] * ENVS), norm_reward=False)
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            self.envs,
            learning_rate=1e-3,
            n_steps=min(ROLLOUT_STEPS, budget_steps // ENVS),
            n_epochs=10,
            gamma=0.9,
            gae_lambda=0.95,
            clip_range=0.2,
            ent_coef=0.0,
            use_sde=True,
            sde_sample_freq=4,
            seed=seed,
            device="cpu",
            policy_kwargs={
                "ortho_init": False,
                "activation_fn": nn.ReLU,
                "lstm_hidden_size": 64,
                "enable_critic_lstm": True,
                "net_arch": {"pi": [64], "vf": [64]},
            },
        )
        _, self._callback = self.model._setup_learn(budget_steps)

    def updates(self) -> Iterator[int]:
        """Train, and yield the steps so far after each update."""
        model = self.model
        while model.num_timesteps < self.budget_steps:
            model.collect_rollouts(self.envs, self._callback, model.rollout_buffer, model.n_steps)
            model._update_current_progress_remaining(model.num_timesteps, self.budget_steps)
            model.train()
            yield model.num_timesteps

    def returns(self, seeds: range) -> NDArray[np.float64]:
        """Return those of one greedy episode of each seed, played at the same time and of the same length."""
        envs = [self.make() for _ in seeds]
        obs = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
        total, state, over = np.zeros(len(envs)), None, False
        starts = np.ones(len(envs), dtype=np.bool_)
        while not over:
            actions, state = self.model.predict(self.envs.normalize_obs(obs), state, starts, deterministic=True)
            steps = [env.step(action) for env, action in zip(envs, actions, strict=True)]
            obs, starts = np.stack([step[0] for step in steps]), np.zeros_like(starts)
            total += [float(step[1]) for step in steps]
            over = any(step[2] or step[3] for step in steps)
        return total
