"""The recurrence, LSTM and external memory, over one length bucket or over all of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from actors.policy.cores.memory import STATISTICS, MemoryWeights, scan
from actors.policy.cores.sequences import BucketLayout, run_layout
from actors.policy.state import PolicyState
from actors.precision import matmul_allows_tf32, tf32

_PER_LAYER = 4  # weight_ih, weight_hh, bias_ih, bias_hh, as in nn.LSTM


def recur(
    x: Tensor,
    state: PolicyState,
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, PolicyState]:
    """Run `x [T, N, inputs]` from `state`. Returns outputs `[T, N, hidden]` and the state after the last step.

    With a memory, its statistics are appended to the outputs: `[T, N, hidden + 3]`. `weights` are the parameters of an
    nn.LSTM in their order, `memory` the fields of `MemoryWeights` or empty. The LSTM runs in `dtype`, the memory in the
    dtype of `x`. Weights are cast explicitly, because an autocast region would cache the casts, without gradient if
    the first pass has none.
    """
    run = _by_cell if torch.compiler.is_compiling() else _fused
    with torch.autocast(x.device.type, enabled=False):
        cast = [w.to(dtype) for w in weights]
        out, h, c = (t.to(x.dtype) for t in run(x.to(dtype), state.h.to(dtype), state.c.to(dtype), cast))
        if not memory:
            return out, PolicyState(h, c, state.cells, state.usage)
        out, statistics, cells, usage = scan(MemoryWeights(*memory), out, state.cells, state.usage)
        return torch.cat([out, statistics], -1), PolicyState(h, c, cells, usage)


def _fused(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    layers, training = len(weights) // _PER_LAYER, torch.is_grad_enabled()
    if not x.is_cuda:
        return torch.lstm(x, (h, c), weights, True, layers, 0.0, training, False, False)
    # cuDNN takes contiguous states only. Its LSTM may use TF32 where matrix products may.
    with tf32(matmul_allows_tf32()):
        return torch.lstm(x, (h.contiguous(), c.contiguous()), weights, True, layers, 0.0, training, False, False)


def _by_cell(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The LSTM's equations, for exported programs: a compiler fuses them better than a call of `torch.lstm`."""
    steps, hs, cs = list(x.unbind()), [], []
    for layer in range(len(weights) // _PER_LAYER):
        w_x, w_h, b_x, b_h = weights[_PER_LAYER * layer : _PER_LAYER * (layer + 1)]
        hidden, cell = h[layer], c[layer]
        for t, step in enumerate(steps):
            i, f, g, o = (F.linear(step, w_x, b_x) + F.linear(hidden, w_h, b_h)).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            steps[t] = hidden = o.sigmoid() * cell.tanh()
        hs.append(hidden)
        cs.append(cell)
    return torch.stack(steps), torch.stack(hs), torch.stack(cs)


def recur_sequence(
    x: Tensor,
    layout: BucketLayout,
    state: PolicyState,
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, PolicyState]:
    """Apply `recur` to every bucket of flat `x [N, inputs]`; see `run_layout` for the results."""

    def run(part: Tensor, before: PolicyState) -> tuple[Tensor, PolicyState]:
        return recur(part, before, weights, memory, dtype)

    outputs = state.h.shape[2] + (len(STATISTICS) if memory else 0)
    return run_layout(run, x, layout, state, outputs)
