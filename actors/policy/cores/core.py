"""Cores: the part of the policy between encoder and heads, which holds the recurrent state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from actors.config import PolicyConfig
from actors.policy.cores.memory import STATISTICS, ExternalMemory
from actors.policy.cores.recurrence import recur, recur_sequence
from actors.policy.cores.sequences import BucketLayout
from actors.policy.state import PolicyState, StateSizes


class CoreOutput(NamedTuple):
    """Output of a core for N steps."""

    output: Tensor  # [N, hidden]
    memory: Tensor  # [N, 3] statistics of the external memory (see `memory.STATISTICS`); [N, 0] without one
    state: PolicyState  # after the step, or after each row's last step


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
        self.sizes = StateSizes.of(config)
        self.hidden_size = hidden

    def step(self, x: Tensor, state: PolicyState) -> CoreOutput:
        """Run one step of N environments, `x [N, inputs]`."""
        out, after = recur(x.unsqueeze(0), state, *self._weights(), _dtype(x))
        return self._output(out.squeeze(0), after)

    def sequence(self, x: Tensor, layout: BucketLayout, state: PolicyState) -> CoreOutput:
        """Run the N valid steps `x [N, inputs]` of all rows, from `state` before each row's first step."""
        return self._output(*recur_sequence(x, layout, state, *self._weights(), _dtype(x)))

    def _weights(self) -> tuple[list[Tensor], list[Tensor]]:
        return list(self.lstm.parameters()), list(self.memory.weights()) if self.memory is not None else []

    def _output(self, out: Tensor, state: PolicyState) -> CoreOutput:
        return CoreOutput(out[:, : self.hidden_size], out[:, self.hidden_size :].detach(), state)


def _dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of the surrounding autocast region, or else that of `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def make_core(inputs: int, config: PolicyConfig) -> Feedforward | Recurrent:
    return Feedforward(inputs, config) if config.core == "feedforward" else Recurrent(inputs, config)
