"""`FactoredRecurrentActorCritic`: encoder > core > LayerNorm > factored heads and critic."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.config import PolicyConfig
from actors.policy.compiled import compiled, dynamic
from actors.policy.cores.core import Recurrent, make_core
from actors.policy.cores.sequences import BucketLayout, Steps
from actors.policy.distribution import choose, floor_mass, masked_log_probs
from actors.policy.encoder import Encoded, make_encoder
from actors.policy.heads import FactoredHeads, mlp
from actors.policy.normaliser import ValueNormaliser
from actors.policy.scoring import HeadScorer
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces


class EmptyMask(ValueError):
    """A head that matters has no legal choice: the op should have been masked."""


class ActOutput(NamedTuple):
    """One step of N environments, as numpy. Values are denormalised."""

    actions: NDArray[np.int64]  # [N, H]
    log_probs: NDArray[np.float32]  # [N, H], 0 where irrelevant
    masks: NDArray[np.bool_]  # [N, A] in force
    values: NDArray[np.float32]  # [N] V, or Q of the chosen op
    baseline_values: NDArray[np.float32]  # [N] V, or the expectation of Q over legal ops
    bootstrap_values: NDArray[np.float32]  # [N] what a truncated episode would be bootstrapped with here


class MaskTensors(NamedTuple):
    """`ActionMasks` as tensors; `slot` is empty where the action space has none."""

    op: Tensor
    slot: Tensor
    rest: Tensor

    @classmethod
    def of(cls, masks: ActionMasks, device: torch.device) -> MaskTensors:
        slot = np.zeros(0, dtype=np.bool_) if masks.slot is None else masks.slot
        writable = (np.require(m, requirements="W") for m in (masks.op, slot, masks.rest))  # shared masks are not
        return cls(*(torch.from_numpy(m).to(device) for m in writable))


class Step(NamedTuple):
    """`ActOutput` as tensors, and what follows from the step."""

    actions: Tensor  # [N, H]
    log_probs: Tensor  # [N, H]
    values: Tensor  # [N] denormalised
    baseline_values: Tensor  # [N] denormalised
    possible: Tensor  # [] bool, whether every head that matters had a legal choice
    memory: Tensor  # [N, 3] or [N, 0], statistics of the external memory
    state: PolicyState  # after the step


class Evaluation(NamedTuple):
    """Of N steps, in the order of `Steps`."""

    log_probs: Tensor  # [N, H] of the given actions, 0 where irrelevant
    entropies: Tensor  # [N, H] normalised, 0 where irrelevant
    values: Tensor  # [N] in normalised units: V, or Q of the given op
    baseline_values: Tensor  # [N] in normalised units, without gradient: V, or the expectation of Q over legal ops
    hidden: Tensor  # [N, hidden] output of the core before its LayerNorm; of an LSTM, its state h
    memory: Tensor  # [N, 3] or [N, 0], statistics of the external memory (names in `network.core.statistics`)


class _Pick(NamedTuple):
    choice: Tensor  # [N]
    log_prob: Tensor  # [N], 0 where irrelevant
    table: Tensor  # [N, n]
    possible: Tensor  # []


class FactoredRecurrentActorCritic(nn.Module):
    relevance: Tensor

    def __init__(self, spaces: Spaces, config: PolicyConfig) -> None:
        super().__init__()
        self.spaces, self.config = spaces, config
        self.floor_mass = floor_mass(config, spaces)
        self.encoder = make_encoder(spaces, config)
        self.core = make_core(self.encoder.core_input_size, config)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.heads = FactoredHeads(spaces.action, config)
        values = spaces.action.num_ops if config.critic == "q_op" else 1
        self.critic = mlp(config.hidden_size, config.head_size, values, 1.0)
        self.value_normaliser = ValueNormaliser(config.popart)
        self.scorer = HeadScorer(spaces.action.sizes)
        self.register_buffer("relevance", torch.tensor(spaces.action.relevance_table), persistent=False)

    @property
    def lstm(self) -> nn.LSTM:
        """The LSTM of a recurrent core."""
        if not isinstance(self.core, Recurrent):
            raise AttributeError("a feedforward core has no LSTM")
        return self.core.lstm

    @property
    def counted(self) -> Tensor:
        """`[num_ops, H]`: which heads have log-probs, entropies and a part in the loss. Those that matter to the op."""
        return self.relevance if self.config.causal_masks else torch.ones_like(self.relevance)

    @property
    def value_output(self) -> nn.Linear:
        """The critic's last layer, which PopArt rescales."""
        layer = self.critic[2]
        assert isinstance(layer, nn.Linear)
        return layer

    def initial_state(self, batch: int) -> PolicyState:
        return PolicyState.zeros(self.core.sizes, batch, self.norm.weight.device)

    @torch.inference_mode()
    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        """One step of N environments: `obs [N, D]`, `noise [N, H]` uniform in [0, 1), one column per head.

        Returns the decision and the state after the step. Raises `EmptyMask`.
        """
        device = self.norm.weight.device
        seen, blueprints, uniform = (torch.from_numpy(a).to(device) for a in (obs, blueprint_indices, noise))
        legal, step_of = MaskTensors.of(masks, device), _step
        if self.config.compile:
            seen, blueprints, uniform = (dynamic(t) for t in (seen, blueprints, uniform))
            legal = MaskTensors(*map(dynamic, legal))
            # Copies, so that a first state and one that a step left have the same strides and the same kind.
            copies = (t.clone(memory_format=torch.contiguous_format) for t in state)
            state, step_of = PolicyState(*(dynamic(t, 1) for t in copies)), compiled(_step)
        step = step_of(self, seen, blueprints, legal, state, uniform, deterministic)
        if not bool(step.possible):
            raise EmptyMask("a relevant head has no legal choice; mask the op that needs it")
        return self.decision(masks, *step[:4]), step.state

    def decision(self, masks: ActionMasks, *chosen: Tensor) -> ActOutput:
        """Of (actions, log-probs, values, baseline values), as `Step` has them."""
        actions, log_probs, values, baselines = (t.cpu().numpy() for t in chosen)
        in_force = masks.in_force(self.spaces.action, actions, self.config.causal_masks)
        bootstrap = values if self.config.bootstrap == "sampled" else baselines
        return ActOutput(actions, log_probs, in_force, values, baselines, bootstrap)

    def step(
        self,
        obs: Tensor,
        blueprint_indices: Tensor,
        masks: MaskTensors,
        state: PolicyState,
        noise: Tensor,
        deterministic: bool | Tensor,
    ) -> Step:
        """`act` on tensors, without a look at any value on the host."""
        encoded = self._encode(obs, blueprint_indices)
        out = self.core.step(encoded.core_input, state)
        core = self.norm(out.output)
        picks = self._sample(core, encoded, masks, noise, deterministic)
        values, baselines = self._values(core, picks[0].choice, picks[0].table)
        return Step(
            torch.stack([p.choice for p in picks], -1),
            torch.stack([p.log_prob for p in picks], -1),
            self.value_normaliser.denormalise(values),
            self.value_normaliser.denormalise(baselines),
            torch.stack([p.possible for p in picks]).all(),
            out.memory,
            out.state,
        )

    def evaluate_steps(self, steps: Steps) -> Evaluation:
        """Log-probs, entropies and values of the given actions at every step.

        Under autocast the encoder and the LSTM run in its type; memory, heads and values are float32.
        """
        if not self.config.compile or len(steps.obs) < 2:  # see `actors.policy.compiled`
            return _evaluate(self, *steps)
        state = steps.state
        if state.h.shape[1] < 2:
            state = PolicyState(*(torch.cat([t, t], 1) for t in state))  # no layout reads the second row
        obs, blueprints, actions, masks = (dynamic(t.contiguous()) for t in steps[:4])
        state = PolicyState(*(dynamic(t.contiguous(), 1) for t in state))
        layout = [dynamic(t) for t in steps.layout.pack()]
        return compiled(_evaluate)(self, obs, blueprints, actions, masks, state, layout)

    @torch.no_grad()
    def advance(self, steps: Steps) -> PolicyState:
        """The state after each row's last step, without gradient; the layout's buckets must be free of padding."""
        encoded = self._encode(steps.obs, steps.blueprint_indices)
        return self.core.sequence(encoded.core_input, steps.layout, steps.state).state

    def score(self, output: Tensor, slots: Tensor, actions: Tensor, masks: Tensor) -> Evaluation:
        """`Evaluation` from the core's output `[N, hidden]` and slot encodings `[N, S, encoder]`; fixed shapes."""
        core = self.norm(output)
        logits, relevant = self.heads(core, slots, actions), self.counted[actions[:, 0]]
        floor, mass = self.config.probability_floor, self.floor_mass
        table = logits[0]
        if self.config.critic == "q_op":  # before the scorer, into whose graph torch.compile takes `floor` along
            with torch.no_grad():
                table = masked_log_probs(table, masks[:, : table.shape[1]], floor, mass)
        scores = self.scorer(torch.cat(logits, -1), masks, actions, relevant, floor, mass)
        values, baselines = self._values(core, actions[:, 0], table)
        none = core.new_zeros(core.shape[0], 0)
        return Evaluation(scores.log_probs, scores.entropies, values, baselines, output, none)

    def update_normaliser(self, obs: Tensor) -> Tensor:
        """Take `obs [N, D]` into the running statistics, unless the policy is blind. Returns how many entries were
        winsorised."""
        if self.config.blind:
            return torch.zeros((), dtype=torch.long, device=obs.device)
        return self.encoder.update_normaliser(obs)

    def _encode(self, obs: Tensor, blueprint_indices: Tensor) -> Encoded:
        if self.config.blind:
            obs, blueprint_indices = torch.zeros_like(obs), torch.full_like(blueprint_indices, -1)
        encoded: Encoded = self.encoder(obs, blueprint_indices)
        return Encoded(*(t.to(obs.dtype) for t in encoded))

    def _values(self, core: Tensor, op: Tensor, op_table: Tensor) -> tuple[Tensor, Tensor]:
        """(value, baseline value) `[N]`, normalised: V twice, or Q of `op` and its expectation over legal ops."""
        values = self.critic(core)
        if self.config.critic == "v":
            return values.squeeze(-1), values.squeeze(-1).detach()
        expected = (op_table.exp() * values).sum(-1)
        return values.gather(-1, op[:, None]).squeeze(-1), expected.detach()

    def _sample(
        self, core: Tensor, encoded: Encoded, masks: MaskTensors, noise: Tensor, deterministic: bool | Tensor
    ) -> list[_Pick]:
        """Head by head, each given the choices before it; canonical where irrelevant."""
        rows = torch.arange(core.shape[0], device=core.device)
        picks = [self._pick(self.heads.op(core), masks.op, None, noise[:, 0], deterministic)]
        op = slot = picks[0].choice
        relevant, rest_mask = self.relevance[op], masks.rest
        if self.heads.has_slots:
            pointed = self.heads.slot_logits(core, encoded.slots, op)
            picks.append(self._pick(pointed, masks.slot[rows, op], relevant[:, 1], noise[:, 1], deterministic))
            slot = picks[1].choice
            rest_mask = rest_mask[rows, op, slot]
        rest = torch.split(rest_mask, [head.size for head in self.spaces.action.rest_heads], -1)
        for logits, mask in zip(self.heads.rest_logits(core, encoded.slots, op, slot), rest, strict=True):
            k = len(picks)
            picks.append(self._pick(logits, mask, relevant[:, k], noise[:, k], deterministic))
        return picks

    def _pick(
        self, logits: Tensor, mask: Tensor, relevant: Tensor | None, noise: Tensor, deterministic: bool | Tensor
    ) -> _Pick:
        if relevant is not None:
            canonical = torch.zeros_like(mask) if self.config.causal_masks else torch.ones_like(mask)
            canonical[:, 0] = True
            mask = torch.where(relevant[:, None], mask, canonical)
        table = masked_log_probs(logits, mask, self.config.probability_floor, self.floor_mass)
        choice = choose(table, noise, deterministic)
        chosen = table.gather(-1, choice[:, None]).squeeze(-1)
        if relevant is None or not self.config.causal_masks:
            return _Pick(choice, chosen, table, mask.any(-1).all())
        log_prob = torch.where(relevant, chosen, 0.0)
        return _Pick(choice, log_prob, table, mask.any(-1).all())


def _step(network: FactoredRecurrentActorCritic, *args: Any) -> Step:
    return network.step(*args)


def _evaluate(
    network: FactoredRecurrentActorCritic,
    obs: Tensor,
    blueprint_indices: Tensor,
    actions: Tensor,
    masks: Tensor,
    state: PolicyState,
    layout: BucketLayout | list[Tensor],
) -> Evaluation:
    encoded = network._encode(obs, blueprint_indices)
    out = network.core.sequence(encoded.core_input, layout, state)
    with torch.autocast(obs.device.type, enabled=False):
        return network.score(out.output, encoded.slots, actions, masks)._replace(memory=out.memory)
