"""An external memory after the LSTM: query > attention over cells > read; gated write, evicting the least used cell.

Content-based addressing as in Neural Turing Machines (Graves et al., 2014); least-used allocation as in memory-
augmented networks (Santoro et al., 2016), here hard and without gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actors.config import PolicyConfig

USAGE_DECAY = 0.95
STATISTICS = ("write_gate", "evictions", "attention_entropy")
"""Per step: the gate; 1 where a write of more than a half replaced a cell in use; entropy over the log of the cells."""


class MemoryWeights(NamedTuple):
    """Of the projections from `hidden` to a query, a write and its gate, and of the read back to `hidden`."""

    inputs_weight: Tensor  # [2 * size + 1, hidden]
    inputs_bias: Tensor  # [2 * size + 1]
    read_weight: Tensor  # [hidden, size]


class ExternalMemory(nn.Module):
    """Holds the weights; `scan` does the work, so that a compiled operator can hold it without the module."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        size = config.memory_size
        self.inputs = nn.Linear(config.hidden_size, 2 * size + 1)
        self.read = nn.Linear(size, config.hidden_size, bias=False)
        nn.init.orthogonal_(self.inputs.weight)
        nn.init.zeros_(self.inputs.bias)
        nn.init.orthogonal_(self.read.weight)

    def weights(self) -> MemoryWeights:
        return MemoryWeights(self.inputs.weight, self.inputs.bias, self.read.weight)


def read_and_write(
    q: Tensor, w: Tensor, g: Tensor, cells: Tensor, usage: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of the scan: `q, w [N, size]`, `g [N, 1]`, `cells [N, K, size]`, `usage [N, K]`."""
    scores = (cells @ q.unsqueeze(-1)).squeeze(-1) / sqrt(q.shape[-1])
    log_attention = scores.log_softmax(-1)
    attention = log_attention.exp()
    read = (attention.unsqueeze(1) @ cells).squeeze(1)
    usage = USAGE_DECAY * usage + attention.detach()
    evicted = F.one_hot(usage.argmin(-1), usage.shape[-1]).to(g.dtype)  # the first of equals, so unused cells in order
    strength = g * evicted
    with torch.no_grad():
        in_use = ((cells != 0).any(-1) * evicted).sum(-1)
        entropy = -(attention * log_attention).sum(-1) / max(log(usage.shape[-1]), 1e-6)
        told = torch.stack([g.squeeze(-1), in_use * (g.squeeze(-1) > 0.5), entropy], -1)
        usage = usage * (1.0 - strength) + strength
    cells = cells * (1.0 - strength.unsqueeze(-1)) + strength.unsqueeze(-1) * w.unsqueeze(1)
    return read, cells, usage, told


Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


def scan(
    weights: MemoryWeights, outputs: Tensor, cells: Tensor, usage: Tensor, step: Step = read_and_write
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Over `outputs [T, N, hidden]` of the LSTM from `cells [K, N, size]` and `usage [K, N, 1]`.

    Returns outputs with what was read added, statistics `[T, N, 3]`, and cells and usage after the last step. All
    queries, writes and gates are one product; only what depends on the cells goes step by step: by `read_and_write`, or
    by machine code of it.
    """
    size = cells.shape[2]
    projected = F.linear(outputs, weights.inputs_weight, weights.inputs_bias)
    query, write, gate = torch.split(projected, [size, size, 1], -1)
    write, gate = write.tanh(), gate.sigmoid()
    held, used = cells.transpose(0, 1), usage.squeeze(-1).transpose(0, 1)  # [N, K, size], [N, K]
    reads, statistics = [], []
    for q, w, g in zip(query.unbind(), write.unbind(), gate.unbind(), strict=True):
        read, held, used, told = step(q, w, g, held, used)
        reads.append(read)
        statistics.append(told)
    read = F.linear(torch.stack(reads), weights.read_weight)
    cells, usage = held.transpose(0, 1).contiguous(), used.transpose(0, 1).unsqueeze(-1).contiguous()
    return outputs + read, torch.stack(statistics), cells, usage
