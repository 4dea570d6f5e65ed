"""`Stepper`: one step of the network for inference, in a third of its operations.

In small networks the overhead of calling operations exceeds their arithmetic. Therefore everything that depends only
on the weights is precomputed, layers with the same input are merged into one matrix product, and all heads after the
slot are evaluated as one batch of heads, since they are independent given op and slot. Tests compare the results with
`FactoredRecurrentActorCritic.step`.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actors.policy.cores.core import Feedforward, Recurrent
from actors.policy.cores.memory import ExternalMemory, MemoryWeights, scan
from actors.policy.distribution import choose_with_prob, masked_probs, where_relevant
from actors.policy.encoder import Encoded, SlotEncoder
from actors.policy.gaussian import sample
from actors.policy.network import FactoredRecurrentActorCritic, MaskTensors
from actors.policy.state import PolicyState


class StepperOutput(NamedTuple):
    """Decision and next state. A relevant head without legal choices has a non-finite log-prob."""

    actions: Tensor  # [N, H]
    log_probs: Tensor  # [N, H], 0 where irrelevant
    values: Tensor  # [N] denormalized
    baseline_values: Tensor  # [N] denormalized
    state: PolicyState


class Stepper(nn.Module):
    """An inference-only copy of a network.

    All its tensors are derived from the network's and are part of the `state_dict`, so that loading
    `Stepper(network).state_dict()` updates another stepper of the same architecture.
    """

    @torch.no_grad()
    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        super().__init__()
        self.config, slots = network.config, network.spaces.slots
        encoder = network.encoder
        self.encoder = _FusedSlotEncoder(encoder, slots) if isinstance(encoder, SlotEncoder) else copy.deepcopy(encoder)
        self.core = _FusedCore(network.core) if isinstance(network.core, Recurrent) else copy.deepcopy(network.core)
        self.norm, self.value_normalizer = copy.deepcopy(network.norm), copy.deepcopy(network.value_normalizer)
        self.heads = _FusedHeads(network)
        self.to(network.norm.weight.device)  # some masks and indices were created on the CPU
        self.requires_grad_(False)

    def forward(
        self,
        obs: Tensor,
        blueprint_indices: Tensor,
        masks: MaskTensors,
        state: PolicyState,
        noise: Tensor,
        deterministic: bool | Tensor,
    ) -> StepperOutput:
        """See `FactoredRecurrentActorCritic.step`."""
        if self.config.blind:
            obs, blueprint_indices = torch.zeros_like(obs), torch.full_like(blueprint_indices, -1)
        encoded: Encoded = self.encoder(obs, blueprint_indices)
        if isinstance(self.core, Feedforward):
            output, after = self.core.step(encoded.core_input, state).output, state
        else:
            output, after = self.core(encoded.core_input, state)
        actions, log_probs, values, baselines = self.heads(
            self.norm(output), encoded.slots, masks, noise, deterministic
        )
        values, baselines = (self.value_normalizer.denormalize(v) for v in (values, baselines))
        return StepperOutput(actions, log_probs, values, baselines, after)


class _FusedSlotEncoder(nn.Module):
    """`SlotEncoder` for a fixed number of slots, with a single normalization and a precomputed term per blueprint."""

    def __init__(self, encoder: SlotEncoder, slots: int) -> None:
        super().__init__()
        self.base_size, self.slot_size, self.slots = encoder.base_size, encoder.slot_size, slots
        self.clip = encoder.base_normalizer.clip
        parts = [encoder.base_normalizer, *[encoder.slot_normalizer] * slots]
        self.mean = nn.Buffer(torch.cat([p.mean for p in parts]))
        self.scale = nn.Buffer(torch.cat([p.scale() for p in parts]))
        self.base = copy.deepcopy(encoder.base)
        linear, self.slot_norm = _linear(encoder.slot, 0), copy.deepcopy(encoder.slot[1])
        features, blueprint = torch.split(linear.weight, [self.slot_size, encoder.blueprint.embedding_dim], 1)
        self.weight = nn.Buffer(features)
        self.blueprint = nn.Buffer(F.linear(encoder.blueprint.weight, blueprint, linear.bias))

    def forward(self, obs: Tensor, blueprint_indices: Tensor) -> Encoded:
        normalized = ((obs - self.mean) * self.scale).clamp(-self.clip, self.clip).to(obs.dtype)
        base = self.base(normalized.narrow(1, 0, self.base_size))
        by_slot = normalized.narrow(1, self.base_size, self.slots * self.slot_size)
        features = F.linear(by_slot.view(-1, self.slots, self.slot_size), self.weight)
        slots = self.slot_norm(features + F.embedding(blueprint_indices + 1, self.blueprint)).relu()
        return Encoded(torch.cat([base, slots.mean(1), slots.amax(1)], -1), slots)


class _FusedCore(nn.Module):
    """One step of an LSTM, with one matrix product per layer, followed by the external memory if there is one."""

    def __init__(self, core: Recurrent) -> None:
        super().__init__()
        self.layers, self.hidden = core.lstm.num_layers, core.hidden_size
        for layer in range(self.layers):
            w_x, w_h, b_x, b_h = (t.chunk(4) for t in core.lstm.all_weights[layer])
            gates = (0, 1, 3, 2)  # input, forget, output, candidate: the three sigmoid gates are adjacent
            self.register_buffer(f"weight{layer}", torch.cat([torch.cat([w_x[g], w_h[g]], 1) for g in gates]))
            self.register_buffer(f"bias{layer}", torch.cat([b_x[g] + b_h[g] for g in gates]))
        self.memory: ExternalMemory | None = copy.deepcopy(core.memory)

    def forward(self, x: Tensor, state: PolicyState) -> tuple[Tensor, PolicyState]:
        hs, cs, n = [], [], self.hidden
        for layer in range(self.layers):
            weight, bias = getattr(self, f"weight{layer}"), getattr(self, f"bias{layer}")
            gates = F.linear(torch.cat([x, state.h[layer]], -1), weight, bias)
            i, f, o = gates.narrow(1, 0, 3 * n).sigmoid().chunk(3, -1)
            c = torch.addcmul(f * state.c[layer], i, gates.narrow(1, 3 * n, n).tanh())
            x = o * c.tanh()
            hs.append(x)
            cs.append(c)
        h, c = torch.stack(hs), torch.stack(cs)
        if self.memory is None:
            return x, PolicyState(h, c, state.cells, state.usage)
        weights = MemoryWeights(*self.memory.weights())
        out, _, cells, usage = scan(weights, x.unsqueeze(0), state.cells, state.usage)
        return out.squeeze(0), PolicyState(h, c, cells, usage)


class _FusedHeads(nn.Module):
    """Heads and critic with merged layers.

    `trunk` is the part of all first layers that reads the core's output, `context` the precomputed part that reads the
    op's embedding.
    """

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        super().__init__()
        heads, spec, config = network.heads, network.spaces.action, network.config
        self.has_slots, self.conditioned = heads.has_slots, heads.conditioned
        self.floor, self.floor_mass = config.probability_floor, network.floor_mass
        self.causal, self.critic = config.causal_masks, config.critic
        self.width, self.rest = config.head_width, len(spec.rest_heads)
        readers = [heads.op, network.critic, *([heads.pointer] if self.has_slots else []), *heads.rest.values()]
        first, last = [_linear(m, 0) for m in readers], [_linear(m, 2) for m in readers]
        core, slot = config.hidden_size, config.hidden_size + config.encoder_size
        self.trunk_weight = nn.Buffer(torch.cat([f.weight[:, :core] for f in first]))
        self.trunk_bias = nn.Buffer(torch.cat([f.bias for f in first]))
        self.top_sizes = [m.out_features for m in last[:2]]
        self.top_weight = nn.Buffer(_diagonal([m.weight for m in last[:2]]))
        self.top_bias = nn.Buffer(torch.cat([m.bias for m in last[:2]]))
        if self.has_slots:
            self.pointer_slot, self.pointer = nn.Buffer(first[2].weight[:, core:slot]), copy.deepcopy(last[2])
        if self.conditioned:
            self.rest_slot = nn.Buffer(torch.cat([f.weight[:, core:slot] for f in first[3:]]))
            after_op = torch.cat([f.weight[:, slot:] for f in first[2:]])
            self.context = nn.Buffer(F.linear(heads.op_embedding.weight, after_op))
        self.relevance = nn.Buffer(network.relevance)
        self.categorical, self.gaussian = spec.num_categorical, copy.deepcopy(network.gaussian)
        self.no_slot = nn.Buffer(self._irrelevant_mask(torch.ones(max(1, spec.num_slots), dtype=torch.bool)))
        if self.rest:
            self._fuse_rest(last[2 + self.has_slots :])

    def _fuse_rest(self, last: list[nn.Linear]) -> None:
        """Merge the output layers of the rest heads, padded to `[N, R, W]` with W the largest head."""
        sizes = torch.tensor([m.out_features for m in last])
        widest = int(sizes.max())
        missing = [widest - m.out_features for m in last]
        weights = [F.pad(m.weight, (0, 0, 0, n)) for m, n in zip(last, missing, strict=True)]
        self.rest_weight = nn.Buffer(_diagonal(weights))
        self.rest_bias = nn.Buffer(torch.cat([F.pad(m.bias, (0, n)) for m, n in zip(last, missing, strict=True)]))
        column = torch.arange(widest)
        inside = column < sizes[:, None]
        self.inside, self.no_rest = nn.Buffer(inside), nn.Buffer(self._irrelevant_mask(inside))
        self.columns = nn.Buffer(torch.where(inside, (sizes.cumsum(0) - sizes)[:, None] + column, 0).flatten())

    def _irrelevant_mask(self, inside: Tensor) -> Tensor:
        """The mask of irrelevant heads: only the first choice, or all choices without causal masks."""
        return inside & (torch.arange(inside.shape[-1]) < 1) if self.causal else inside

    def forward(
        self, core: Tensor, slots: Tensor, masks: MaskTensors, noise: Tensor, deterministic: bool | Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (actions, log-probs, values, baseline values), with values in normalized units."""
        w = self.width
        trunk = F.linear(core, self.trunk_weight, self.trunk_bias)
        above, later = torch.split(trunk, [2 * w, trunk.shape[1] - 2 * w], 1)
        logits, outputs = torch.split(F.linear(above.relu(), self.top_weight, self.top_bias), self.top_sizes, 1)
        probs = masked_probs(logits, masks.op, self.floor, self.floor_mass)
        flag = deterministic[..., None] if isinstance(deterministic, Tensor) else deterministic
        op, chance = choose_with_prob(probs.unsqueeze(1), noise.narrow(1, 0, 1), flag)
        values, baselines = self._values(outputs, op, probs)
        picks, chances = [op], [chance]
        op, rest, rest_mask = op.squeeze(1), later, masks.rest
        relevant = self.relevance.index_select(0, op)
        if self.has_slots:
            if self.conditioned:
                later = later + F.embedding(op, self.context)
            to_pointer, rest = torch.split(later, [w, later.shape[1] - w], 1)
            pointed = self.pointer((to_pointer.unsqueeze(1) + F.linear(slots, self.pointer_slot)).relu()).squeeze(-1)
            row, count = torch.arange(core.shape[0], device=core.device), slots.shape[1]
            mask_row = op.add(row, alpha=self.top_sizes[0])  # index into the slot masks [N * ops, S]
            own_mask = masks.slot.flatten(0, 1).index_select(0, mask_row)
            mask = torch.where(relevant.narrow(1, 1, 1), own_mask, self.no_slot)
            probs = masked_probs(pointed, mask, self.floor, self.floor_mass)
            slot, chance = choose_with_prob(probs.unsqueeze(1), noise.narrow(1, 1, 1), flag)
            picks.append(slot)
            chances.append(chance)
            slot = slot.squeeze(1)
            rest_mask = rest_mask.flatten(0, 2).index_select(0, slot.add(mask_row, alpha=count))
            if self.conditioned:
                chosen = slots.flatten(0, 1).index_select(0, slot.add(row, alpha=count))
                rest = rest + F.linear(chosen, self.rest_slot)
        if self.rest:
            shape, before = (-1, *self.inside.shape), relevant.shape[1] - self.rest
            logits = F.linear(rest.relu(), self.rest_weight, self.rest_bias).view(shape)
            mask = rest_mask.index_select(1, self.columns).view(shape) & self.inside
            mask = torch.where(relevant.narrow(1, before, self.rest).unsqueeze(-1), mask, self.no_rest)
            probs = masked_probs(logits, mask, self.floor, self.floor_mass)
            choices, chance = choose_with_prob(probs, noise.narrow(1, before, self.rest), flag)
            picks.append(choices)
            chances.append(chance)
        actions, log_probs = torch.cat(picks, -1), torch.cat(chances, -1).log()
        if self.causal and len(picks) > 1:
            log_probs = where_relevant(relevant, log_probs)
        if self.gaussian is not None:
            first = self.categorical
            count = actions.shape[1] - first
            means, log_std = logits.narrow(1, self.rest - count, count).select(2, 0), self.gaussian.log_std(core)
            cells, own = sample(means, log_std, noise.narrow(1, first, count), flag)
            actions, log_probs = (
                torch.cat([a.narrow(1, 0, first), b], -1) for a, b in ((actions, cells), (log_probs, own))
            )
        return actions, log_probs, values, baselines

    def _values(self, values: Tensor, op: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        if self.critic == "v":
            return values[:, 0], values[:, 0]
        return values.gather(-1, op)[:, 0], (probs * values).sum(-1)


def _linear(layers: nn.Module, index: int) -> nn.Linear:
    assert isinstance(layers, nn.Sequential)
    found = layers[index]
    assert isinstance(found, nn.Linear)
    return found


def _diagonal(blocks: list[Tensor]) -> Tensor:
    matrix: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return matrix
