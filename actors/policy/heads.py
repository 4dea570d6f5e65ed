"""The factored heads: op, then slot given op, then the remaining heads given op and slot."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actors.config import PolicyConfig
from actors.types.actions import ActionSpec

LOG_STD_RANGE = (-5.0, 2.0)


def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Build Linear-ReLU-Linear with orthogonal initialization, the output layer with the given gain."""
    first, last = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
    for layer, scale in ((first, sqrt(2.0)), (last, gain)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.ReLU(), last)


class FactoredHeads(nn.Module):
    """Computes the logits of each head.

    If `conditioned`, later heads also read the op's embedding and the chosen slot's encoding. Slot logits come from a
    pointer, which scores every slot with the same MLP and so works for any number of slots. In an action space without
    op and slot there is no pointer, the module `op` is the first head, and all heads are independent.
    """

    def __init__(self, spec: ActionSpec, config: PolicyConfig) -> None:
        super().__init__()
        self.has_slots = spec.conditioned
        self.conditioned = spec.conditioned and config.heads == "conditioned"
        context = config.choice_embedding if self.conditioned else 0
        core, slot = config.hidden_size, config.encoder_size
        self.op = mlp(core, config.head_width, spec.num_ops, 0.01)
        if self.has_slots:
            self.pointer = mlp(core + slot + context, config.head_width, 1, 0.01)
        inputs = core + (slot + context if self.conditioned else 0)
        self.rest = nn.ModuleDict(
            {head.name: mlp(inputs, config.head_width, head.size, 0.01) for head in spec.rest_heads}
        )
        if self.conditioned:
            self.op_embedding = nn.Embedding(spec.num_ops, config.choice_embedding)

    def slot_logits(self, core: Tensor, slots: Tensor, op: Tensor) -> Tensor:
        """Return `[N, S]` from core `[N, hidden]`, slot encodings `[N, S, encoder]` and chosen op `[N]`."""
        parts = [core.unsqueeze(1).expand(-1, slots.shape[1], -1), slots]
        if self.conditioned:
            parts.append(self.op_embedding(op).unsqueeze(1).expand(-1, slots.shape[1], -1))
        logits: Tensor = self.pointer(torch.cat(parts, -1)).squeeze(-1)
        return logits

    def rest_logits(self, core: Tensor, slots: Tensor, op: Tensor, slot: Tensor) -> list[Tensor]:
        """Return one `[N, n]` per remaining head."""
        if self.conditioned:
            chosen = slots.gather(1, slot[:, None, None].expand(-1, 1, slots.shape[2])).squeeze(1)
            core = torch.cat([core, chosen, self.op_embedding(op)], -1)
        return [head(core) for head in self.rest.values()]

    def forward(self, core: Tensor, slots: Tensor, actions: Tensor) -> list[Tensor]:
        """Return one `[N, n]` per head, each conditioned on the earlier choices in `actions [N, H]`."""
        op = actions[:, 0]
        if not self.has_slots:
            return [self.op(core), *self.rest_logits(core, slots, op, op)]
        pointed = self.slot_logits(core, slots, op)
        return [self.op(core), pointed, *self.rest_logits(core, slots, op, actions[:, 1])]


class GaussianHeads(nn.Module):
    """The log standard deviations of all continuous heads: parameters, or (`policy.log_std: state`) a linear function
    of the core's output. The means are outputs of `FactoredHeads`."""

    def __init__(self, spec: ActionSpec, config: PolicyConfig) -> None:
        super().__init__()
        self.by_state = config.log_std == "state"
        self.bias = nn.Parameter(torch.full((spec.num_continuous,), config.initial_log_std))
        if self.by_state:
            self.weight = nn.Parameter(torch.zeros(spec.num_continuous, config.hidden_size))

    def log_std(self, core: Tensor) -> Tensor:
        """Return `[N, C]` from the core's normalized output `[N, hidden]`."""
        raw = F.linear(core, self.weight, self.bias) if self.by_state else self.bias.expand(core.shape[0], -1)
        return raw.float().clamp(*LOG_STD_RANGE)
