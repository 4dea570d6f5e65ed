"""`Stepper`: one step of the network in a third of its operations, for those who act and train nothing.

A step of a small network costs what its operations cost to call, not their arithmetic. So what depends on the weights
alone is worked out beforehand, layers that read the same input are one product, and all heads after the slot are one
head with a row for each: given op and slot they do not see each other. `FactoredRecurrentActorCritic.step` is what it
is checked against.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actors.policy.cores.core import Feedforward, Recurrent
from actors.policy.cores.memory import ExternalMemory, MemoryWeights, scan
from actors.policy.distribution import choose_of, masked_probs, where_relevant
from actors.policy.encoder import Encoded, SlotEncoder
from actors.policy.network import FactoredRecurrentActorCritic, MaskTensors
from actors.policy.state import PolicyState


class Stepped(NamedTuple):
    """Where a head that matters had no legal choice, its log-prob is not finite."""

    actions: Tensor  # [N, H]
    log_probs: Tensor  # [N, H], 0 where irrelevant
    values: Tensor  # [N] denormalised
    baseline_values: Tensor  # [N] denormalised
    state: PolicyState


class Stepper(nn.Module):
    """For evaluation alone. All its tensors are made of the network's and in its `state_dict`, so that
    `Stepper(network).state_dict()` renews another one of the same architecture."""

    @torch.no_grad()
    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        super().__init__()
        self.config, slots = network.config, network.spaces.slots
        encoder = network.encoder
        self.encoder = _Slots(encoder, slots) if isinstance(encoder, SlotEncoder) else copy.deepcopy(encoder)
        self.core = _Cells(network.core) if isinstance(network.core, Recurrent) else copy.deepcopy(network.core)
        self.norm, self.value_normaliser = copy.deepcopy(network.norm), copy.deepcopy(network.value_normaliser)
        self.heads = _Heads(network)
        self.to(network.norm.weight.device)  # masks and indices are made on the CPU
        self.requires_grad_(False)

    def forward(
        self,
        obs: Tensor,
        blueprint_indices: Tensor,
        masks: MaskTensors,
        state: PolicyState,
        noise: Tensor,
        deterministic: bool | Tensor,
    ) -> Stepped:
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
        values, baselines = (self.value_normaliser.denormalise(v) for v in (values, baselines))
        return Stepped(actions, log_probs, values, baselines, after)


class _Slots(nn.Module):
    """`SlotEncoder` for a given number of slots: one normalisation, and a table of what each blueprint adds."""

    def __init__(self, encoder: SlotEncoder, slots: int) -> None:
        super().__init__()
        self.base_size, self.slot_size, self.slots = encoder.base_size, encoder.slot_size, slots
        self.clip = encoder.base_normaliser.clip
        parts = [encoder.base_normaliser, *[encoder.slot_normaliser] * slots]
        self.mean = nn.Buffer(torch.cat([p.mean for p in parts]))
        self.scale = nn.Buffer(torch.cat([p.scale() for p in parts]))
        self.base = copy.deepcopy(encoder.base)
        linear, self.slot_norm = _linear(encoder.slot, 0), copy.deepcopy(encoder.slot[1])
        features, blueprint = torch.split(linear.weight, [self.slot_size, encoder.blueprint.embedding_dim], 1)
        self.weight = nn.Buffer(features)
        self.blueprint = nn.Buffer(F.linear(encoder.blueprint.weight, blueprint, linear.bias))

    def forward(self, obs: Tensor, blueprint_indices: Tensor) -> Encoded:
        seen = ((obs - self.mean) * self.scale).clamp(-self.clip, self.clip).to(obs.dtype)
        base = self.base(seen.narrow(1, 0, self.base_size))
        shown = seen.narrow(1, self.base_size, self.slots * self.slot_size).view(-1, self.slots, self.slot_size)
        features = F.linear(shown, self.weight)
        slots = self.slot_norm(features + F.embedding(blueprint_indices + 1, self.blueprint)).relu()
        return Encoded(torch.cat([base, slots.mean(1), slots.amax(1)], -1), slots)


class _Cells(nn.Module):
    """One step of an LSTM, a product for each layer, and of the memory behind it."""

    def __init__(self, core: Recurrent) -> None:
        super().__init__()
        self.layers, self.hidden = core.lstm.num_layers, core.hidden_size
        for layer in range(self.layers):
            w_x, w_h, b_x, b_h = (t.chunk(4) for t in core.lstm.all_weights[layer])
            gates = (0, 1, 3, 2)  # those of a sigmoid side by side: in, forget, out, and then the candidate
            self.register_buffer(f"weight{layer}", torch.cat([torch.cat([w_x[g], w_h[g]], 1) for g in gates]))
            self.register_buffer(f"bias{layer}", torch.cat([b_x[g] + b_h[g] for g in gates]))
        self.memory: ExternalMemory | None = copy.deepcopy(core.memory)

    def forward(self, x: Tensor, state: PolicyState) -> tuple[Tensor, PolicyState]:
        hs, cs, n = [], [], self.hidden
        for layer in range(self.layers):
            weight, bias = getattr(self, f"weight{layer}"), getattr(self, f"bias{layer}")
            given = F.linear(torch.cat([x, state.h[layer]], -1), weight, bias)
            i, f, o = given.narrow(1, 0, 3 * n).sigmoid().chunk(3, -1)
            c = torch.addcmul(f * state.c[layer], i, given.narrow(1, 3 * n, n).tanh())
            x = o * c.tanh()
            hs.append(x)
            cs.append(c)
        h, c = torch.stack(hs), torch.stack(cs)
        if self.memory is None:
            return x, PolicyState(h, c, state.cells, state.usage)
        weights = MemoryWeights(*self.memory.weights())
        out, _, cells, usage = scan(weights, x.unsqueeze(0), state.cells, state.usage)
        return out.squeeze(0), PolicyState(h, c, cells, usage)


class _Heads(nn.Module):
    """Heads and critic. `trunk` is what the core says to all their first layers, `context` what the op says to those
    that come after it."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        super().__init__()
        heads, spec, config = network.heads, network.spaces.action, network.config
        self.has_slots, self.conditioned = heads.has_slots, heads.conditioned
        self.floor, self.floor_mass = config.probability_floor, network.floor_mass
        self.causal, self.critic = config.causal_masks, config.critic
        self.width, self.rest = config.head_size, len(spec.rest_heads)
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
        self.no_slot = nn.Buffer(self._unasked(torch.ones(max(1, spec.num_slots), dtype=torch.bool)))
        if self.rest:
            self._take_rest(last[2 + self.has_slots :])

    def _take_rest(self, last: list[nn.Linear]) -> None:
        """Heads side by side, `[N, R, W]` with W the largest."""
        sizes = torch.tensor([m.out_features for m in last])
        widest = int(sizes.max())
        missing = [widest - m.out_features for m in last]
        weights = [F.pad(m.weight, (0, 0, 0, n)) for m, n in zip(last, missing, strict=True)]
        self.rest_weight = nn.Buffer(_diagonal(weights))
        self.rest_bias = nn.Buffer(torch.cat([F.pad(m.bias, (0, n)) for m, n in zip(last, missing, strict=True)]))
        wide = torch.arange(widest)
        inside = wide < sizes[:, None]
        self.inside, self.no_rest = nn.Buffer(inside), nn.Buffer(self._unasked(inside))
        self.columns = nn.Buffer(torch.where(inside, (sizes.cumsum(0) - sizes)[:, None] + wide, 0).flatten())

    def _unasked(self, inside: Tensor) -> Tensor:
        """The mask of a head that does not matter: its first choice."""
        return inside & (torch.arange(inside.shape[-1]) < 1) if self.causal else inside

    def forward(
        self, core: Tensor, slots: Tensor, masks: MaskTensors, noise: Tensor, deterministic: bool | Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(actions, log-probs, values, baseline values), the values normalised."""
        w = self.width
        trunk = F.linear(core, self.trunk_weight, self.trunk_bias)
        above, later = torch.split(trunk, [2 * w, trunk.shape[1] - 2 * w], 1)
        logits, outputs = torch.split(F.linear(above.relu(), self.top_weight, self.top_bias), self.top_sizes, 1)
        probs = masked_probs(logits, masks.op, self.floor, self.floor_mass)
        flag = deterministic[..., None] if isinstance(deterministic, Tensor) else deterministic
        op, chance = choose_of(probs.unsqueeze(1), noise.narrow(1, 0, 1), flag)
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
            asked = op.add(row, alpha=self.top_sizes[0])  # row of all rows' masks for each op
            mask = torch.where(relevant.narrow(1, 1, 1), masks.slot.flatten(0, 1).index_select(0, asked), self.no_slot)
            probs = masked_probs(pointed, mask, self.floor, self.floor_mass)
            slot, chance = choose_of(probs.unsqueeze(1), noise.narrow(1, 1, 1), flag)
            picks.append(slot)
            chances.append(chance)
            slot = slot.squeeze(1)
            rest_mask = rest_mask.flatten(0, 2).index_select(0, slot.add(asked, alpha=count))
            if self.conditioned:
                chosen = slots.flatten(0, 1).index_select(0, slot.add(row, alpha=count))
                rest = rest + F.linear(chosen, self.rest_slot)
        if self.rest:
            shape, before = (-1, *self.inside.shape), relevant.shape[1] - self.rest
            logits = F.linear(rest.relu(), self.rest_weight, self.rest_bias).view(shape)
            mask = rest_mask.index_select(1, self.columns).view(shape) & self.inside
            mask = torch.where(relevant.narrow(1, before, self.rest).unsqueeze(-1), mask, self.no_rest)
            probs = masked_probs(logits, mask, self.floor, self.floor_mass)
            choices, chance = choose_of(probs, noise.narrow(1, before, self.rest), flag)
            picks.append(choices)
            chances.append(chance)
        log_probs = torch.cat(chances, -1).log()
        if self.causal and len(picks) > 1:
            log_probs = where_relevant(relevant, log_probs)
        return torch.cat(picks, -1), log_probs, values, baselines

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
    made: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return made
