"""`FactoredRecurrentActorCritic`: encoder, core, LayerNorm, then factored heads and critic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.config import PolicyConfig
from actors.policy.cores.core import make_core
from actors.policy.cores.sequences import Steps
from actors.policy.distribution import (
    QUADRATURE,
    HeadScorer,
    cell_log_prob,
    choose,
    floor_mass,
    gaussian_entropy,
    masked_log_probs,
    sample_cells,
)
from actors.policy.encoder import Encoded, make_encoder
from actors.policy.heads import FactoredHeads, GaussianHeads, mlp
from actors.policy.normalizer import ValueNormalizer
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces


class EmptyMask(ValueError):
    """A relevant head has no legal choice, although its op was legal."""


class ActOutput(NamedTuple):
    """The policy's decision for one step of N environments, as numpy arrays. Values are denormalized."""

    actions: NDArray[np.int64]  # [N, H]
    log_probs: NDArray[np.float32]  # [N, H], 0 where irrelevant
    masks: NDArray[np.bool_]  # [N, A] in force
    values: NDArray[np.float32]  # [N] V, or Q of the chosen op
    baseline_values: NDArray[np.float32]  # [N] V, or the expectation of Q over legal ops
    bootstrap_values: NDArray[np.float32]  # [N] bootstrap values of episodes truncated at these observations


class MaskTensors(NamedTuple):
    """`ActionMasks` as tensors; `slot` is empty in action spaces without slots."""

    op: Tensor
    slot: Tensor
    rest: Tensor

    @classmethod
    def from_masks(cls, masks: ActionMasks, device: torch.device) -> MaskTensors:
        slot = np.zeros(0, dtype=np.bool_) if masks.slot is None else masks.slot
        # torch.from_numpy warns about read-only arrays, such as masks that several environments share.
        writable = (np.require(m, requirements="W") for m in (masks.op, slot, masks.rest))
        return cls(*(torch.from_numpy(m).to(device) for m in writable))


class StepOutput(NamedTuple):
    """Result of `FactoredRecurrentActorCritic.step`: the decision as tensors, and the next state."""

    actions: Tensor  # [N, H]
    log_probs: Tensor  # [N, H]
    values: Tensor  # [N] denormalized
    baseline_values: Tensor  # [N] denormalized
    all_legal: Tensor  # [] bool, whether every relevant head had a legal choice
    memory: Tensor  # [N, 3] or [N, 0], statistics of the external memory
    state: PolicyState  # after the step


class Evaluation(NamedTuple):
    """Evaluation of given actions at N valid steps, sequence by sequence."""

    log_probs: Tensor  # [N, H] of the given actions, 0 where irrelevant
    entropies: Tensor  # [N, H] normalized, 0 where irrelevant; of continuous heads in nats
    values: Tensor  # [N] in normalized units: V, or Q of the given op
    baseline_values: Tensor  # [N] in normalized units, without gradient: V, or the expectation of Q over legal ops
    hidden: Tensor  # [N, hidden] output of the core before its LayerNorm, without gradient; of an LSTM, its state h
    memory: Tensor  # [N, 3] or [N, 0], statistics of the external memory (names in `network.core.statistics`)


class _HeadSample(NamedTuple):
    choice: Tensor  # [N]
    log_prob: Tensor  # [N], 0 where irrelevant
    log_probs: Tensor  # [N, n] of all choices
    all_legal: Tensor  # [] bool
    logits: Tensor  # [N, n]; of a continuous head, its mean


class FactoredRecurrentActorCritic(nn.Module):
    """The policy and value network: an optionally recurrent core with factored, masked action heads.

    `act` takes one environment step with numpy arrays, `step` the same with tensors; `evaluate_steps` evaluates given
    actions of whole sequences, with gradient.
    """

    relevance: Tensor
    squashed: Tensor  # [C] bool, of the continuous heads
    quadrature: Tensor  # [2, 32] points and weights of their entropies

    def __init__(self, spaces: Spaces, config: PolicyConfig) -> None:
        super().__init__()
        self.spaces, self.config = spaces, config
        self.masked = False  # whether a choice was illegal in what it has learned from, in spaces without slots
        self.floor_mass = floor_mass(config, spaces)
        self.categorical = spaces.action.num_categorical
        self.encoder = make_encoder(spaces, config)
        self.core = make_core(self.encoder.core_input_size, config)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.heads = FactoredHeads(spaces.action, config)
        self.gaussian = GaussianHeads(spaces.action, config) if spaces.action.num_continuous else None
        values = spaces.action.num_ops if config.critic == "q_op" else 1
        self.critic = mlp(config.hidden_size, config.head_width, values, 1.0)
        self.value_normalizer = ValueNormalizer(config.popart)
        self.scorer = HeadScorer(spaces.action.sizes)
        self.register_buffer("relevance", torch.tensor(spaces.action.relevance_table), persistent=False)
        squashed = torch.tensor([h.squash for h in spaces.action.heads if h.continuous], dtype=torch.bool)
        self.register_buffer("squashed", squashed, persistent=False)
        self.register_buffer("quadrature", torch.from_numpy(QUADRATURE), persistent=False)

    @property
    def counted(self) -> Tensor:
        """`[num_ops, H]` bool: heads that count in log-probs, entropies and losses; without causal masks, all heads."""
        return self.relevance if self.config.causal_masks else torch.ones_like(self.relevance)

    @property
    def value_output(self) -> nn.Linear:
        """The critic's output layer, which PopArt rescales."""
        layer = self.critic[2]
        assert isinstance(layer, nn.Linear)
        return layer

    def initial_state(self, batch: int) -> PolicyState:
        """Return the zero state of `batch` environments."""
        return PolicyState.zeros(self.core.sizes, batch, self.norm.weight.device)

    @torch.inference_mode()
    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks | None = None,
        state: PolicyState | None = None,
        noise: NDArray[np.float64] | None = None,
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        """Choose actions for N environments: `obs [N, D]`, `noise [N, H]` uniform in [0, 1), one column per head.

        Without masks everything is legal, without a state an episode begins, and without noise PyTorch's generator
        draws it. Returns the decision and the state after the step. Raises `EmptyMask`.
        """
        device = self.norm.weight.device
        features, blueprints = (torch.from_numpy(a).to(device) for a in (obs, blueprint_indices))
        uniform = self._draw(len(obs)) if noise is None else torch.from_numpy(noise).to(device)
        masks = ActionMasks.all_legal(self.spaces.action, len(obs)) if masks is None else masks
        state = self.initial_state(len(obs)) if state is None else state
        legal = MaskTensors.from_masks(masks, device)
        step = self.step(features, blueprints, legal, state, uniform, deterministic)
        if not bool(step.all_legal):
            raise EmptyMask("a relevant head has no legal choice; mask the op that needs it")
        return self.decision(masks, *step[:4]), step.state

    def decision(self, masks: ActionMasks, *chosen: Tensor) -> ActOutput:
        """Build `ActOutput` from the first four fields of `StepOutput`: actions, log-probs, values, baseline values."""
        actions, log_probs, values, baselines = (t.cpu().numpy() for t in chosen)
        in_force = masks.in_force(self.spaces.action, actions, self.config.causal_masks)
        bootstrap = values if self.config.bootstrap == "sampled" else baselines
        return ActOutput(actions, log_probs, in_force, values, baselines, bootstrap)

    def step(
        self,
        obs: Tensor,
        blueprint_indices: Tensor,
        masks: MaskTensors | None = None,
        state: PolicyState | None = None,
        noise: Tensor | None = None,
        deterministic: bool | Tensor = False,
    ) -> StepOutput:
        """`act` with tensors, without device synchronization."""
        if masks is None:
            masks = MaskTensors.from_masks(ActionMasks.all_legal(self.spaces.action, len(obs)), obs.device)
        state = self.initial_state(len(obs)) if state is None else state
        noise = self._draw(len(obs)) if noise is None else noise
        encoded = self._encode(obs, blueprint_indices)
        out = self.core.step(encoded.core_input, state)
        core = self.norm(out.output)
        samples = self._sample(core, encoded, masks, noise, deterministic)
        values, baselines = self._values(core, samples[0].choice, samples[0].log_probs)
        actions, log_probs = (torch.stack([s[k] for s in samples], -1) for k in (0, 1))
        if self.gaussian is not None:
            first = self.categorical
            means = torch.cat([s.logits for s in samples[first:]], -1)
            greedy = deterministic.unsqueeze(-1) if isinstance(deterministic, Tensor) else deterministic
            cells, cell_log_probs = sample_cells(means, self.gaussian.log_std(core), noise[:, first:], greedy)
            actions = torch.cat([actions[:, :first], cells], -1)
            log_probs = torch.cat([log_probs[:, :first], cell_log_probs], -1)
        return StepOutput(
            actions,
            log_probs,
            self.value_normalizer.denormalize(values),
            self.value_normalizer.denormalize(baselines),
            torch.stack([s.all_legal for s in samples]).all(),
            out.memory,
            out.state,
        )

    def evaluate_steps(self, steps: Steps) -> Evaluation:
        """Evaluate the given actions of flat steps.

        Under autocast, encoder and LSTM run in the autocast dtype; memory, heads and values in float32.
        """
        if self._uses_kernels(steps):
            from actors.policy.kernels import evaluate_steps  # imports Numba

            log_probs, entropies, values, baselines, hidden = evaluate_steps(self, steps)
            return Evaluation(log_probs, entropies, values, baselines, hidden, hidden[:, :0])
        encoded = self._encode(steps.obs, steps.blueprint_indices)
        out = self.core.sequence(encoded.core_input, steps.layout.buckets, steps.state)
        with torch.autocast(steps.obs.device.type, enabled=False):
            evaluation = self.score(out.output, encoded.slots, steps.actions, steps.masks)
        return evaluation._replace(memory=out.memory)

    @property
    def has_kernels(self) -> bool:
        """Whether there are kernels for this network: not for continuous heads, an external memory, devices other than
        CPUs, nor for spaces that mix slots with independent heads."""
        spec, slots, weight = self.spaces.action, self.spaces.slots, self.norm.weight
        usual = spec.conditioned == (slots > 0) and (spec.conditioned or bool(spec.relevance_table.all()))
        on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
        return usual and on_cpu and not spec.num_continuous and self.config.core != "lstm+memory"

    def _uses_kernels(self, steps: Steps) -> bool:
        """Whether kernels evaluate these steps: not in reduced precision, nor where gradients with respect to inputs
        are wanted."""
        return (
            len(steps.obs) > 0
            and steps.obs.dtype == torch.float32
            and not any(t.requires_grad for t in (steps.obs, *steps.state))
            and not torch.is_autocast_enabled("cpu")
            and self.has_kernels
        )

    @torch.no_grad()
    def advance(self, steps: Steps) -> PolicyState:
        """Return the state after each sequence's last step, without gradient. The layout's buckets must have no
        padding."""
        encoded = self._encode(steps.obs, steps.blueprint_indices)
        return self.core.sequence(encoded.core_input, steps.layout.buckets, steps.state).state

    def score(self, output: Tensor, slots: Tensor, actions: Tensor, masks: Tensor) -> Evaluation:
        """Return `Evaluation` from the core's output `[N, hidden]` and slot encodings `[N, S, encoder]`."""
        core = self.norm(output)
        logits, relevant = self.heads(core, slots, actions), self.counted[actions[:, 0]]
        floor, mass = self.config.probability_floor, self.floor_mass
        op_log_probs = logits[0]
        if self.config.critic == "q_op":
            with torch.no_grad():
                op_log_probs = masked_log_probs(op_log_probs, masks[:, : op_log_probs.shape[1]], floor, mass)
        first, gaussian = self.categorical, self.gaussian
        choices = (
            actions if gaussian is None else torch.cat([actions[:, :first], torch.zeros_like(actions[:, first:])], -1)
        )
        log_probs, entropies = self.scorer(torch.cat(logits, -1), masks, choices, relevant, floor, mass)
        if gaussian is not None:
            means, log_std = torch.cat(logits[first:], -1).float(), gaussian.log_std(core)
            own_entropies = gaussian_entropy(means, log_std, self.squashed, self.quadrature)
            log_probs = torch.cat([log_probs[:, :first], cell_log_prob(actions[:, first:], means, log_std)], -1)
            entropies = torch.cat([entropies[:, :first], own_entropies], -1)
        values, baselines = self._values(core, actions[:, 0], op_log_probs)
        none = core.new_zeros(core.shape[0], 0)
        return Evaluation(log_probs, entropies, values, baselines, output.detach(), none)

    def update_normalizer(self, obs: Tensor) -> Tensor:
        """Update the running statistics with `obs [N, D]`, unless the policy is blind.

        Returns the number of winsorized entries.
        """
        if self.config.blind:
            return torch.zeros((), dtype=torch.long, device=obs.device)
        return self.encoder.update_normalizer(obs)

    def _draw(self, rows: int) -> Tensor:
        """Return noise `[rows, H]`."""
        heads = len(self.spaces.action.heads)
        return torch.rand(rows, heads, dtype=torch.float64, device=self.norm.weight.device)

    def _encode(self, obs: Tensor, blueprint_indices: Tensor) -> Encoded:
        if self.config.blind:
            obs, blueprint_indices = torch.zeros_like(obs), torch.full_like(blueprint_indices, -1)
        encoded: Encoded = self.encoder(obs, blueprint_indices)
        return Encoded(*(t.to(obs.dtype) for t in encoded))

    def _values(self, core: Tensor, op: Tensor, op_log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalized (value, baseline value) `[N]`: V twice, or Q of `op` and the expectation of Q."""
        values = self.critic(core)
        if self.config.critic == "v":
            return values.squeeze(-1), values.squeeze(-1).detach()
        expected = (op_log_probs.exp() * values).sum(-1)
        return values.gather(-1, op[:, None]).squeeze(-1), expected.detach()

    def _sample(
        self, core: Tensor, encoded: Encoded, masks: MaskTensors, noise: Tensor, deterministic: bool | Tensor
    ) -> list[_HeadSample]:
        """Sample the heads in order, each given the earlier choices; irrelevant heads take their canonical choice."""
        rows = torch.arange(core.shape[0], device=core.device)
        samples = [self._sample_head(self.heads.op(core), masks.op, None, noise[:, 0], deterministic)]
        op = slot = samples[0].choice
        relevant, rest_mask = self.relevance[op], masks.rest
        if self.heads.has_slots:
            pointed = self.heads.slot_logits(core, encoded.slots, op)
            samples.append(self._sample_head(pointed, masks.slot[rows, op], relevant[:, 1], noise[:, 1], deterministic))
            slot = samples[1].choice
            rest_mask = rest_mask[rows, op, slot]
        rest = torch.split(rest_mask, [head.size for head in self.spaces.action.rest_heads], -1)
        for logits, mask in zip(self.heads.rest_logits(core, encoded.slots, op, slot), rest, strict=True):
            k = len(samples)
            samples.append(self._sample_head(logits, mask, relevant[:, k], noise[:, k], deterministic))
        return samples

    def _sample_head(
        self, logits: Tensor, mask: Tensor, relevant: Tensor | None, noise: Tensor, deterministic: bool | Tensor
    ) -> _HeadSample:
        if relevant is not None:
            canonical = torch.zeros_like(mask) if self.config.causal_masks else torch.ones_like(mask)
            canonical[:, 0] = True
            # Not `torch.where`, which ONNX runtimes lack for booleans.
            mask = (relevant[:, None] & mask) | (~relevant[:, None] & canonical)
        log_probs = masked_log_probs(logits, mask, self.config.probability_floor, self.floor_mass)
        choice = choose(log_probs, noise, deterministic)
        chosen = log_probs.gather(-1, choice[:, None]).squeeze(-1)
        if relevant is not None and self.config.causal_masks:
            chosen = torch.where(relevant, chosen, 0.0)
        return _HeadSample(choice, chosen, log_probs, mask.any(-1).all(), logits)
