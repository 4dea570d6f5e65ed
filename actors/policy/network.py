"""`FactoredRecurrentActorCritic`: encoder > LSTM > LayerNorm > factored heads and critic (SPEC 7)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.actions import ActionMasks
from actors.config import PolicyConfig
from actors.policy.distribution import choose, masked_log_probs, normalised_entropy
from actors.policy.encoder import Encoded, make_encoder
from actors.policy.heads import FactoredHeads, mlp
from actors.policy.normaliser import ValueNormaliser
from actors.policy.sequences import SequenceBatch, Steps, flatten, run_lstm
from actors.policy.state import PolicyState
from actors.spaces import Spaces


class EmptyMask(ValueError):
    """A head that matters has no legal choice: the op should have been masked."""


class Decision(NamedTuple):
    """One step of N environments, as numpy."""

    actions: NDArray[np.int64]  # [N, H]
    log_probs: NDArray[np.float32]  # [N, H], 0 where irrelevant
    masks: NDArray[np.bool_]  # [N, A] in force
    values: NDArray[np.float32]  # [N] denormalised


class Evaluation(NamedTuple):
    """N valid steps of a sequence batch, row by row."""

    log_probs: Tensor  # [N, H] of the given actions, 0 where irrelevant
    entropies: Tensor  # [N, H] normalised, 0 where irrelevant
    values: Tensor  # [N] in normalised units
    hidden: Tensor  # [N, hidden] output of the core


class FactoredRecurrentActorCritic(nn.Module):
    relevance: Tensor

    def __init__(self, spaces: Spaces, config: PolicyConfig) -> None:
        super().__init__()
        self.spaces, self.config = spaces, config
        self.encoder = make_encoder(spaces, config)
        self.lstm = nn.LSTM(self.encoder.core_input_size, config.hidden_size, config.num_layers)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.heads = FactoredHeads(spaces.action, config)
        self.critic = mlp(config.hidden_size, config.head_size, 1, 1.0)
        self.value_normaliser = ValueNormaliser(config.popart)
        self.register_buffer("relevance", torch.tensor(spaces.action.relevance_table), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for name, p in self.lstm.named_parameters():
            if name.startswith("weight"):
                for gate in p.chunk(4):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(p)
                p.data[self.config.hidden_size : 2 * self.config.hidden_size] = 1.0  # forget gate

    @property
    def value_output(self) -> nn.Linear:
        """The critic's last layer, which PopArt rescales."""
        layer = self.critic[2]
        assert isinstance(layer, nn.Linear)
        return layer

    def initial_state(self, batch: int) -> PolicyState:
        shape = (self.config.num_layers, batch, self.config.hidden_size)
        device = self.norm.weight.device
        return PolicyState(torch.zeros(shape, device=device), torch.zeros(shape, device=device))

    @torch.inference_mode()
    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[Decision, PolicyState]:
        """One step of N environments: `obs [N, D]`, `noise [N, H]` uniform in [0, 1), one column per head.

        Returns the decision and the state after the step. Raises `EmptyMask`.
        """
        device = self.norm.weight.device
        encoded = self.encoder(*(torch.from_numpy(a).to(device) for a in (obs, blueprint_indices)))
        output, (h, c) = self.lstm(encoded.core_input.unsqueeze(0), (state.h, state.c))
        core = self.norm(output.squeeze(0))
        uniform = torch.from_numpy(noise).to(device)
        actions, log_probs = self._sample(core, encoded, masks, uniform, deterministic)
        values = self.value_normaliser.denormalise(self.critic(core).squeeze(-1))
        chosen = actions.cpu().numpy()
        decision = Decision(
            chosen,
            log_probs.cpu().numpy(),
            masks.in_force(self.spaces.action, chosen),
            values.cpu().numpy(),
        )
        return decision, PolicyState(h, c)

    def _sample(
        self, core: Tensor, encoded: Encoded, masks: ActionMasks, noise: Tensor, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        """Head by head: actions `[N, H]` and their log-probs, canonical and 0 where irrelevant."""
        rows = torch.arange(core.shape[0], device=core.device)
        op_mask, rest_mask = (torch.from_numpy(m).to(core.device) for m in (masks.op, masks.rest))
        picks = [self._pick(self.heads.op(core), op_mask, None, noise[:, 0], deterministic)]
        op = slot = picks[0][0]
        relevant = self.relevance[op]
        if masks.slot is not None:
            by_op = torch.from_numpy(masks.slot).to(core.device)
            pointed = self.heads.slot_logits(core, encoded.slots, op)
            picks.append(self._pick(pointed, by_op[rows, op], relevant[:, 1], noise[:, 1], deterministic))
            slot = picks[1][0]
            rest_mask = rest_mask[rows, op, slot]
        rest = torch.split(rest_mask, [head.size for head in self.spaces.action.rest_heads], -1)
        for logits, mask in zip(self.heads.rest_logits(core, encoded.slots, op, slot), rest, strict=True):
            k = len(picks)
            picks.append(self._pick(logits, mask, relevant[:, k], noise[:, k], deterministic))
        actions, log_probs = zip(*picks, strict=True)
        return torch.stack(actions, -1), torch.stack(log_probs, -1)

    def _pick(
        self, logits: Tensor, mask: Tensor, relevant: Tensor | None, noise: Tensor, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        if relevant is not None:
            canonical = torch.zeros_like(mask)
            canonical[:, 0] = True
            mask = torch.where(relevant[:, None], mask, canonical)
        if not bool(mask.any(-1).all()):
            raise EmptyMask("a relevant head has no legal choice; mask the op that needs it")
        log_probs = masked_log_probs(logits, mask, self.config.probability_floor)
        choice = choose(log_probs, noise, deterministic)
        chosen = log_probs.gather(-1, choice[:, None]).squeeze(-1)
        return choice, chosen if relevant is None else torch.where(relevant, chosen, 0.0)

    def evaluate(self, sequence: SequenceBatch, max_waste: float = 1.3) -> Evaluation:
        """Log-probs, entropies and values of the given actions at every valid step."""
        return self.evaluate_steps(flatten(sequence, max_waste))

    def evaluate_steps(self, steps: Steps) -> Evaluation:
        """The same for flat steps. Under autocast encoder and core run in its type; heads and values are float32."""
        encoded = self.encoder(steps.obs, steps.blueprint_indices)
        core, _ = run_lstm(self.lstm, encoded.core_input, steps.layout, steps.state)
        with torch.autocast(core.device.type, enabled=False):
            return self.score(core.float(), encoded.slots.float(), steps.actions, steps.masks)

    @torch.no_grad()
    def advance(self, steps: Steps) -> PolicyState:
        """The state after each row's last step, without gradient; the layout's buckets must be free of padding."""
        encoded = self.encoder(steps.obs, steps.blueprint_indices)
        return run_lstm(self.lstm, encoded.core_input, steps.layout, steps.state)[1]

    def score(self, output: Tensor, slots: Tensor, actions: Tensor, masks: Tensor) -> Evaluation:
        """`Evaluation` from the core's output `[N, hidden]` and slot encodings `[N, S, encoder]`; fixed shapes."""
        core = self.norm(output)
        logits = self.heads(core, slots, actions)
        relevant = self.relevance[actions[:, 0]]
        log_probs, entropies = [], []
        for k, (head, mask) in enumerate(
            zip(logits, torch.split(masks, list(self.spaces.action.sizes), -1), strict=True)
        ):
            table = masked_log_probs(head, mask, self.config.probability_floor)
            log_prob = table.gather(-1, actions[:, k : k + 1]).squeeze(-1)
            log_probs.append(torch.where(relevant[:, k], log_prob, 0.0))
            entropies.append(torch.where(relevant[:, k], normalised_entropy(table, mask), 0.0))
        values = self.critic(core).squeeze(-1)
        return Evaluation(torch.stack(log_probs, -1), torch.stack(entropies, -1), values, core)
