"""An external memory after the LSTM: reads by attention over its cells, and gated writes to the least used cell.

Content-based addressing as in Neural Turing Machines (Graves et al., 2014); least-used allocation as in memory-
augmented networks (Santoro et al., 2016), here hard and without gradient.
"""

from __future__ import annotations

from math import log, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actors.config import PolicyConfig

USAGE_DECAY = 0.95
STATISTICS = ("write_gate", "evictions", "attention_entropy")
"""Per step: the write gate; 1 if a write with a gate above 0.5 replaced a cell in use; the normalized entropy of the
attention over cells."""


class ExternalMemory(nn.Module):
    """Projects outputs of the LSTM to queries, writes and gates, and what was read to the size of an output."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        size = config.memory_size
        self.inputs = nn.Linear(config.hidden_size, 2 * size + 1)
        self.read = nn.Linear(size, config.hidden_size, bias=False)
        nn.init.orthogonal_(self.inputs.weight)
        nn.init.zeros_(self.inputs.bias)
        nn.init.orthogonal_(self.read.weight)

    def forward(self, outputs: Tensor, cells: Tensor, usage: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run the memory over `outputs [T, N, hidden]`, from `cells [K, N, size]` and `usage [K, N, 1]`.

        Returns the outputs with the projected reads added, statistics `[T, N, 3]`, and cells and usage after the last
        step. Queries, writes and gates of all steps are one matrix product; only what depends on the cells runs step
        by step.
        """
        size = cells.shape[2]
        query, write, gate = torch.split(self.inputs(outputs), [size, size, 1], -1)
        write, gate = write.tanh(), gate.sigmoid()
        held, used = cells.transpose(0, 1), usage.squeeze(-1).transpose(0, 1)  # [N, K, size], [N, K]
        reads, statistics = [], []
        for q, w, g in zip(query.unbind(), write.unbind(), gate.unbind(), strict=True):
            read, held, used, step_statistics = read_and_write(q, w, g, held, used)
            reads.append(read)
            statistics.append(step_statistics)
        cells, usage = held.transpose(0, 1).contiguous(), used.transpose(0, 1).unsqueeze(-1).contiguous()
        return outputs + self.read(torch.stack(reads)), torch.stack(statistics), cells, usage


def read_and_write(
    q: Tensor, w: Tensor, g: Tensor, cells: Tensor, usage: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run one step: queries `q` and writes `w [N, size]`, gates `g [N, 1]`, `cells [N, K, size]`,
    `usage [N, K]`.

    Returns what was read `[N, size]`, the new cells and usage, and statistics `[N, 3]`.
    """
    scores = (cells @ q.unsqueeze(-1)).squeeze(-1) / sqrt(q.shape[-1])
    log_attention = scores.log_softmax(-1)
    attention = log_attention.exp()
    read = (attention.unsqueeze(1) @ cells).squeeze(1)
    usage = USAGE_DECAY * usage + attention.detach()
    evicted = F.one_hot(usage.argmin(-1), usage.shape[-1]).to(g.dtype)  # ties: the first, so unused cells in order
    strength = g * evicted
    with torch.no_grad():
        in_use = ((cells != 0).any(-1) * evicted).sum(-1)
        entropy = -(attention * log_attention).sum(-1) / max(log(usage.shape[-1]), 1e-6)
        statistics = torch.stack([g.squeeze(-1), in_use * (g.squeeze(-1) > 0.5), entropy], -1)
        usage = usage * (1.0 - strength) + strength
    cells = cells * (1.0 - strength.unsqueeze(-1)) + strength.unsqueeze(-1) * w.unsqueeze(1)
    return read, cells, usage, statistics
