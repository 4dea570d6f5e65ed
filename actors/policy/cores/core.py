"""Cores: the part of the policy between encoder and heads, which holds the recurrent state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actors.config import PolicyConfig
from actors.policy.cores.memory import STATISTICS, ExternalMemory
from actors.policy.cores.sequences import BucketLayout
from actors.policy.state import PolicyState, StateSizes
from actors.precision import matmul_allows_tf32, tf32


class CoreOutput(NamedTuple):
    """Output of a core for N steps."""

    output: Tensor  # [N, hidden]
    memory: Tensor  # [N, 3] statistics of the external memory (see `memory.STATISTICS`); [N, 0] without one
    state: PolicyState  # after the step, or after each sequence's last step


class Feedforward(nn.Module):
    """A multilayer perceptron with an empty state, as a baseline."""

    sizes = StateSizes()
    statistics: tuple[str, ...] = ()

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(config.num_layers):
            linear = nn.Linear(inputs, config.hidden_size)
            nn.init.orthogonal_(linear.weight, 2.0**0.5)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
            inputs = config.hidden_size
        self.layers = nn.Sequential(*layers)

    def step(self, x: Tensor, state: PolicyState) -> CoreOutput:
        """See `Recurrent.step`."""
        out = self.layers(x).to(x.dtype)
        return CoreOutput(out, out.new_zeros(out.shape[0], 0), state)

    def sequence(self, x: Tensor, layout: BucketLayout, state: PolicyState) -> CoreOutput:
        """See `Recurrent.sequence`."""
        return self.step(x, state)


class Recurrent(nn.Module):
    """An LSTM, followed by an external memory with `core: lstm+memory`."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        layers, hidden = config.num_layers, config.hidden_size
        self.lstm = nn.LSTM(inputs, hidden, layers)
        for name, p in self.lstm.named_parameters():
            if name.startswith("weight"):
                # PyTorch stacks the gates. Orthogonal as one matrix, the recurrent weights of each gate would have
                # singular values of about 1/2 instead of 1, and what it passes on would fade with every step.
                for gate in p.chunk(4):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(p)
                p.data[hidden : 2 * hidden] = 1.0  # forget gate
        self.memory = ExternalMemory(config) if config.core == "lstm+memory" else None
        self.statistics = STATISTICS if self.memory is not None else ()
        self.sizes = StateSizes.from_config(config)
        self.hidden_size = hidden

    def step(self, x: Tensor, state: PolicyState) -> CoreOutput:
        """Run one step of N environments, `x [N, inputs]`."""
        out, after = self._run(x.unsqueeze(0), state)
        return self._output(out.squeeze(0), after)

    def sequence(self, x: Tensor, layout: BucketLayout, state: PolicyState) -> CoreOutput:
        """Run the N valid steps `x [N, inputs]` of all sequences, from `state` before each sequence's first step.

        The state of sequences in padded buckets, and of sequences without steps, is returned unchanged.
        """
        pieces, after = [x.new_empty(0, self.hidden_size + len(self.statistics))], state
        for bucket in layout.buckets:
            r, n = bucket.sequences.shape[0], bucket.source.shape[0]
            inputs = x.index_select(0, bucket.source)
            if bucket.place is None:
                padded = inputs.view(r, bucket.steps, -1).transpose(0, 1)
            else:
                padded = inputs.new_zeros(bucket.steps * r, inputs.shape[1]).index_copy(0, bucket.place, inputs)
                padded = padded.view(bucket.steps, r, -1)
            out, last = self._run(padded, state.rows(bucket.sequences))
            if bucket.place is None:
                pieces.append(out.transpose(0, 1).reshape(n, -1))
                changed = (t.index_copy(1, bucket.sequences, u.to(t.dtype)) for t, u in zip(after, last, strict=True))
                after = PolicyState(*changed)
            else:
                pieces.append(out.flatten(0, 1).index_select(0, bucket.place))
        return self._output(torch.cat(pieces).index_select(0, layout.restore), after)

    def _run(self, x: Tensor, state: PolicyState) -> tuple[Tensor, PolicyState]:
        """Run `x [T, N, inputs]` from `state`. Returns outputs `[T, N, hidden]`, with the statistics of a memory
        `[T, N, hidden + 3]`, and the state after the last step.

        The LSTM runs in the dtype of the surrounding autocast region, the memory in that of `x`. Weights are cast
        explicitly, because the region would cache the casts, without gradient if the first pass has none.
        """
        kind, run = x.device.type, _by_cell if torch.compiler.is_compiling() else _fused
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        with torch.autocast(kind, enabled=False):
            weights = [w.to(dtype) for w in self.lstm.parameters()]
            out, h, c = (t.to(x.dtype) for t in run(x.to(dtype), state.h.to(dtype), state.c.to(dtype), weights))
            if self.memory is None:
                return out, PolicyState(h, c, state.cells, state.usage)
            out, statistics, cells, usage = self.memory(out, state.cells, state.usage)
            return torch.cat([out, statistics], -1), PolicyState(h, c, cells, usage)

    def _output(self, out: Tensor, state: PolicyState) -> CoreOutput:
        return CoreOutput(out[:, : self.hidden_size], out[:, self.hidden_size :].detach(), state)


def make_core(inputs: int, config: PolicyConfig) -> Feedforward | Recurrent:
    return Feedforward(inputs, config) if config.core == "feedforward" else Recurrent(inputs, config)


_PER_LAYER = 4  # weight_ih, weight_hh, bias_ih, bias_hh, as in nn.LSTM


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
