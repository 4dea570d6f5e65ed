"""RLlib integration: the seed-training environment, and a Tamiyo checkpoint as an `RLModule`.

    import tamiyo

    tamiyo.register_with_rllib()
    module = RLModuleSpec(module_class=tamiyo.TamiyoRLModule, model_config={"checkpoint": "runs/NAME"})
    config = (
        PPOConfig()
        .environment("tamiyo/SeedTraining-v0", env_config={"tasks": ("digits",)})
        .rl_module(rl_module_spec=module)
    )

The module only acts; RLlib cannot train it. `forward_exploration` samples, `forward_inference` takes the most likely
choices, where sessions and `GrowthController` take medians (`actors.policy.distribution`).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import MultiBinary
from numpy.typing import NDArray
from ray import tune
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor

from actors.env import make_env
from actors.env.env import SeedTrainingEnv
from actors.errors import UserError
from actors.policy.network import MaskTensors
from actors.policy.state import PolicyState
from actors.types.episode import SEED_TRAINING
from learner.run.checkpoint import load_network

Obs = dict[str, NDArray[Any]]


class MasksObserved(gymnasium.Wrapper[Obs, NDArray[np.int64], Obs, NDArray[np.int64]]):
    """The seed-training environment with its action masks in the observation, where an `RLModule` can read them."""

    def __init__(self, env: SeedTrainingEnv) -> None:
        super().__init__(env)
        self._base = env
        spec = env.spaces.action
        ops, slots = spec.num_ops, spec.num_slots
        assert isinstance(env.observation_space, gymnasium.spaces.Dict)
        masks = {
            "op_mask": MultiBinary(ops),
            "slot_mask": MultiBinary([ops, slots]),
            "rest_mask": MultiBinary([ops, slots, spec.rest_size]),
        }
        self.observation_space = gymnasium.spaces.Dict({**env.observation_space.spaces, **masks})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        obs, _ = self._base.reset(seed=seed, options=options)
        return self._with_masks(obs), {}

    def step(self, action: NDArray[np.int64]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._base.step(np.asarray(action))
        return self._with_masks(obs), reward, terminated, truncated, {}

    def _with_masks(self, obs: Obs) -> Obs:
        masks = self._base.masks()
        assert masks.slot is not None
        parts = zip(("op_mask", "slot_mask", "rest_mask"), masks, strict=True)
        return obs | {name: np.asarray(mask, dtype=np.int8) for name, mask in parts}


def register_with_rllib() -> None:
    """Register `tamiyo/SeedTraining-v0` with RLlib; `env_config` takes `run_seed` and fields of `EnvConfig`."""
    tune.register_env(SEED_TRAINING, lambda config: MasksObserved(make_env(**config)))


class TamiyoRLModule(TorchRLModule):
    """A checkpoint as a stateful `RLModule`; `model_config["checkpoint"]` is a checkpoint file or run folder."""

    def setup(self) -> None:
        config = self.model_config
        if not isinstance(config, dict) or "checkpoint" not in config:
            raise UserError(
                'model_config has no checkpoint: give {"checkpoint": "runs/NAME"}, a run folder or a checkpoint file'
            )
        observed = self.observation_space
        if not isinstance(observed, gymnasium.spaces.Dict) or "op_mask" not in observed.spaces:
            raise UserError(
                f"the module needs action masks in the observation: use {SEED_TRAINING} after "
                "tamiyo.register_with_rllib()"
            )
        slots = observed["blueprint_indices"].shape
        assert slots is not None
        self.policy = load_network(config["checkpoint"], slots[0])

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the state of one environment by field, without batch dimension and without empty fields."""
        state = self.policy.initial_state(1)
        return {name: t[:, 0] for name, t in state._asdict().items() if t.numel()}

    @torch.no_grad()
    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._act(batch, deterministic=True)

    @torch.no_grad()
    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._act(batch, deterministic=False)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise UserError("RLlib cannot train a Tamiyo policy: use `tamiyo train`")

    def _act(self, batch: dict[str, Any], deterministic: bool) -> dict[str, Any]:
        """Act on a batch. For stateful modules, RLlib adds a time dimension of length 1: `[B, 1, ...]`."""
        stateful = bool(self.get_initial_state())
        observed_batch = {k: v.squeeze(1) if stateful else v for k, v in batch[Columns.OBS].items()}
        count = observed_batch["obs"].shape[0]
        state = self.policy.initial_state(count)._asdict()
        if stateful:
            state |= {name: t.transpose(0, 1).contiguous() for name, t in batch[Columns.STATE_IN].items()}
        masks = MaskTensors(*(observed_batch[name].bool() for name in ("op_mask", "slot_mask", "rest_mask")))
        heads = len(self.policy.spaces.action.heads)
        noise = torch.rand(count, heads, dtype=torch.float64, device=observed_batch["obs"].device)
        step = self.policy.step(
            observed_batch["obs"].float(),
            observed_batch["blueprint_indices"].long(),
            masks,
            PolicyState(**state),
            noise,
            deterministic,
        )
        output = {
            Columns.ACTIONS: step.actions,
            Columns.ACTION_LOGP: step.log_probs.sum(-1),
            Columns.VF_PREDS: step.values,
        }
        if not stateful:
            return output
        after = {name: t.transpose(0, 1) for name, t in step.state._asdict().items() if t.numel()}
        return {k: v.unsqueeze(1) for k, v in output.items()} | {Columns.STATE_OUT: after}
