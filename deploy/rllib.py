"""RLlib integration: the seed-training environment, and a Tamiyo policy as an `RLModule` that RLlib's PPO trains.

    import tamiyo

    tamiyo.register_with_rllib()
    module = RLModuleSpec(module_class=tamiyo.TamiyoRLModule, model_config={"policy": {}, "max_seq_len": 25})
    config = (
        PPOConfig()
        .environment("tamiyo/SeedTraining-v0", env_config={"tasks": ("digits",)})
        .rl_module(rl_module_spec=module)
    )

`examples/train_with_rllib.py` is the whole training. `forward_exploration` samples, `forward_inference` takes the most
likely choices, where sessions and `GrowthController` take medians (`actors.policy.distribution`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import MultiBinary
from numpy.typing import NDArray
from ray import tune
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchDistribution
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor

from actors.config import PolicyConfig
from actors.env import make_env
from actors.env.env import SeedTrainingEnv
from actors.errors import UserError
from actors.policy.cores.sequences import SequenceLayout, Steps
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic, MaskTensors
from actors.policy.publish import to_weights
from actors.policy.state import PolicyState
from actors.slots.spaces import seed_spaces
from actors.types.actions import PROFILES, ActionMasks, Op
from actors.types.episode import SEED_TRAINING
from learner.run.checkpoint import Checkpoint, LearnerProgress, load_network, write_checkpoint

Obs = dict[str, NDArray[Any]]
MASKS = ("op_mask", "slot_mask", "rest_mask")  # in observations


class MasksObserved(gymnasium.Wrapper[Obs, NDArray[np.int64], Obs, NDArray[np.int64]]):
    """The seed-training environment with its action masks in the observation, where an `RLModule` can read them."""

    def __init__(self, env: SeedTrainingEnv) -> None:
        super().__init__(env)
        self._base = env
        spec = env.spaces.action
        ops, slots = spec.num_ops, spec.num_slots
        assert isinstance(env.observation_space, gymnasium.spaces.Dict)
        masks = (MultiBinary(n) for n in ([ops], [ops, slots], [ops, slots, spec.rest_size]))
        self.observation_space = gymnasium.spaces.Dict(
            {**env.observation_space.spaces, **dict(zip(MASKS, masks, strict=True))}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        obs, _ = self._base.reset(seed=seed, options=options)
        return self._with_masks(obs), {}

    def step(self, action: NDArray[np.int64]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._base.step(np.asarray(action))
        return self._with_masks(obs), reward, terminated, truncated, {}

    def _with_masks(self, obs: Obs) -> Obs:
        masks = self._base.masks()
        assert masks.slot is not None
        parts = zip(MASKS, masks, strict=True)
        return obs | {name: np.asarray(mask, dtype=np.int8) for name, mask in parts}


def register_with_rllib() -> None:
    """Register `tamiyo/SeedTraining-v0` with RLlib; `env_config` takes `run_seed` and fields of `EnvConfig`."""
    tune.register_env(SEED_TRAINING, lambda config: MasksObserved(make_env(**config)))


class TakenActions(TorchDistribution):
    """The joint distribution of all heads at the actions that were taken: later heads depend on earlier choices, so
    that its parameters are the log-prob and the entropy there, `[..., 2]`. The module samples by itself."""

    @classmethod
    def from_logits(cls, logits: Any, **kwargs: Any) -> TakenActions:
        return cls(logits)

    def _get_torch_distribution(self, logits: Tensor) -> Any:
        return logits  # there is none of PyTorch

    def logp(self, value: Any, **kwargs: Any) -> Tensor:
        return cast(Tensor, self._dist[..., 0])

    def entropy(self, **kwargs: Any) -> Tensor:
        return cast(Tensor, self._dist[..., 1])

    def kl(self, other: Any, **kwargs: Any) -> Tensor:
        """Estimate the divergence from the sampled actions, without bias and never negative (Schulman, 2020)."""
        log_ratio: Tensor = other.logp(None) - self.logp(None)
        return log_ratio.exp() - 1.0 - log_ratio

    @staticmethod
    def required_input_dim(space: gymnasium.Space[Any], **kwargs: Any) -> int:
        return 2


class TamiyoRLModule(TorchRLModule, ValueFunctionAPI):
    """A Tamiyo policy, recurrent by default, as an `RLModule` that RLlib's PPO trains and plays.

    `model_config` has either `checkpoint`, a checkpoint file or run folder to start from, or `policy`, the fields of a
    new one's `PolicyConfig`; and `max_seq_len`, RLlib's length of training sequences: the longest episode, or less.
    Value statistics (PopArt) follow the batches on which it is trained. It is on the device on which RLlib puts it.
    """

    def setup(self) -> None:
        config, observed = self.model_config, self.observation_space
        if not isinstance(config, dict) or ("checkpoint" in config) == ("policy" in config):
            raise UserError(
                'model_config has no policy: give {"checkpoint": "runs/NAME"}, a run folder or a checkpoint file, or '
                '{"policy": {}}, the settings of a new one'
            )
        if not isinstance(observed, gymnasium.spaces.Dict) or "op_mask" not in observed.spaces:
            raise UserError(
                f"the module needs action masks in the observation: use {SEED_TRAINING} after "
                "tamiyo.register_with_rllib()"
            )
        slots = observed["blueprint_indices"].shape
        assert slots is not None
        if "checkpoint" in config:
            self.policy = load_network(config["checkpoint"], slots[0])
        else:
            every = [seed_spaces(slots[0], profile) for profile in PROFILES]
            spaces = next(s for s in every if s.action.num_ops == observed["op_mask"].shape[0])  # type: ignore[index]
            self.policy = FactoredRecurrentActorCritic(spaces, PolicyConfig(**config["policy"]))
        if self.policy.config.critic != "v":
            raise UserError("RLlib's PPO has one value for each state: choose policy.critic v")

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the state of one environment by field, without batch dimension and without empty fields."""
        state = self.policy.initial_state(1)
        return {name: t[:, 0] for name, t in state._asdict().items() if t.numel()}

    def get_inference_action_dist_cls(self) -> type[TorchDistribution]:
        return TakenActions

    @torch.no_grad()
    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._act(batch, deterministic=True)

    @torch.no_grad()
    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._act(batch, deterministic=False)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if Columns.VALUE_TARGETS in batch:
            targets = batch[Columns.VALUE_TARGETS]
            counted = batch.get(Columns.LOSS_MASK, torch.ones_like(targets, dtype=torch.bool))
            self.policy.value_normalizer.update(targets[counted], self.policy.value_output)
        evaluated, shape = self._evaluate(batch, batch[Columns.ACTIONS].long())
        terms = torch.stack([evaluated.log_probs.sum(-1), evaluated.entropies.sum(-1)], -1)
        values = self.policy.value_normalizer.denormalize(evaluated.values)
        return {Columns.ACTION_DIST_INPUTS: terms.view(*shape, 2), Columns.EMBEDDINGS: values.view(shape)}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """Return the values `[B]` or `[B, T]`; `embeddings` are those that `forward_train` returned."""
        if embeddings is not None:
            return embeddings
        obs = batch[Columns.OBS]["obs"]
        waits = obs.new_zeros(*obs.shape[:-1], len(self.policy.spaces.action.heads), dtype=torch.long)
        evaluated, shape = self._evaluate(batch, waits)  # a value does not depend on the action
        return self.policy.value_normalizer.denormalize(evaluated.values).view(shape)

    def save(self, path: str | Path) -> Path:
        """Write the policy as a checkpoint into a folder, such as for `tamiyo serve --checkpoint`, in the place of what
        was saved there before. Return the path of the file."""
        weights = to_weights(self.policy, version=0, generation=0, state_stride=1)
        return write_checkpoint(Path(path), Checkpoint(LearnerProgress(version=0), (), weights, {}), replace=True)

    def _evaluate(self, batch: dict[str, Any], actions: Tensor) -> tuple[Evaluation, torch.Size]:
        """Evaluate `actions` `[B, H]` or, of a stateful module, `[B, T, H]` with zeros after the end of a sequence."""
        shape, observed = actions.shape[:-1], batch[Columns.OBS]
        sequences, steps = (shape[0], shape[1]) if self.is_stateful() else (shape.numel(), 1)
        flat = {name: t.flatten(0, len(shape) - 1) for name, t in observed.items()}
        actions = actions.flatten(0, -2)
        masks = ActionMasks(*(flat[name].bool().cpu().numpy() for name in MASKS))
        masks.op[~masks.op.any(-1), Op.WAIT] = True  # after the end of a sequence nothing is legal
        in_force = masks.in_force(self.policy.spaces.action, actions.cpu().numpy(), self.policy.config.causal_masks)
        device = actions.device
        evaluated = self.policy.evaluate_steps(
            Steps(
                flat["obs"].float(),
                flat["blueprint_indices"].long(),
                actions,
                torch.from_numpy(in_force).to(device),
                self._state(batch, sequences),
                SequenceLayout([steps] * sequences, 1.0, device),
            )
        )
        return evaluated, shape

    def _state(self, batch: dict[str, Any], sequences: int) -> PolicyState:
        state = self.policy.initial_state(sequences)._asdict()
        if self.is_stateful():
            state |= {name: t.transpose(0, 1).contiguous() for name, t in batch[Columns.STATE_IN].items()}
        return PolicyState(**state)

    def _act(self, batch: dict[str, Any], deterministic: bool) -> dict[str, Any]:
        """Act on a batch. For stateful modules, RLlib adds a time dimension of length 1: `[B, 1, ...]`."""
        stateful = self.is_stateful()
        observed = {k: v.squeeze(1) if stateful else v for k, v in batch[Columns.OBS].items()}
        count = observed["obs"].shape[0]
        heads = len(self.policy.spaces.action.heads)
        step = self.policy.step(
            observed["obs"].float(),
            observed["blueprint_indices"].long(),
            MaskTensors(*(observed[name].bool() for name in MASKS)),
            self._state(batch, count),
            torch.rand(count, heads, dtype=torch.float64, device=observed["obs"].device),
            deterministic,
        )
        log_probs = step.log_probs.sum(-1)
        output = {
            Columns.ACTIONS: step.actions,
            Columns.ACTION_LOGP: log_probs,
            Columns.ACTION_DIST_INPUTS: torch.stack([log_probs, torch.zeros_like(log_probs)], -1),
        }
        if not stateful:
            return output
        after = {name: t.transpose(0, 1) for name, t in step.state._asdict().items() if t.numel()}
        return {k: v.unsqueeze(1) for k, v in output.items()} | {Columns.STATE_OUT: after}
