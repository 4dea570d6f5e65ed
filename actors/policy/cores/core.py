"""Cores: what stands between encoder and heads and carries the past. `Core` runs one step, or whole sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from actors.config import PolicyConfig
from actors.policy.cores.memory import STATISTICS, ExternalMemory
from actors.policy.cores.recurrence import opaque_sequence, recur, recur_sequence
from actors.policy.cores.sequences import BucketLayout
from actors.policy.state import PolicyState, StateSizes


class CoreOutput(NamedTuple):
    output: Tensor  # [N, hidden]
    memory: Tensor  # [N, 3] statistics of the external memory (see `memory.STATISTICS`); [N, 0] without one
    state: PolicyState  # after the step, or after each row's last step


class Feedforward(nn.Module):
    """The baseline: a multilayer perceptron, and a state without content."""

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
        out = self.layers(x).to(x.dtype)
        return CoreOutput(out, out.new_zeros(out.shape[0], 0), state)

    def sequence(self, x: Tensor, layout: BucketLayout | list[Tensor], state: PolicyState) -> CoreOutput:
        return self.step(x, state)


class Recurrent(nn.Module):
    """An LSTM and, with `core: lstm+memory`, an external memory behind it."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        layers, hidden = config.num_layers, config.hidden_size
        self.lstm = nn.LSTM(inputs, hidden, layers)
        for name, p in self.lstm.named_parameters():
            if name.startswith("weight"):
                for gate in p.chunk(4):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(p)
                p.data[hidden : 2 * hidden] = 1.0  # forget gate
        self._weights = tuple(self.lstm.parameters())
        self.memory = ExternalMemory(config) if config.core == "lstm+memory" else None
        self.statistics = STATISTICS if self.memory is not None else ()
        state = (layers, hidden)
        cells = ((config.memory_cells, config.memory_size), (config.memory_cells, 1)) if self.memory else ()
        self.sizes = StateSizes(state, state, *cells)
        self.hidden_size = hidden

    def step(self, x: Tensor, state: PolicyState) -> CoreOutput:
        """One step of N environments: `x [N, inputs]`."""
        out, after = recur(x.unsqueeze(0), state, *self._all_weights(), _dtype(x))
        return self._output(out.squeeze(0), after)

    def sequence(self, x: Tensor, layout: BucketLayout | list[Tensor], state: PolicyState) -> CoreOutput:
        """Flat steps `x [N, inputs]`; `state` is each row's own before its first step. A packed layout is for
        compiled code: the whole recurrence is then one operator."""
        given = (state, *self._all_weights(), _dtype(x))
        return self._output(
            *(opaque_sequence(x, layout, *given) if isinstance(layout, list) else recur_sequence(x, layout, *given))
        )

    def _all_weights(self) -> tuple[list[Tensor], list[Tensor]]:
        # torch.compile refuses to look into an nn.LSTM, torch.export swaps the parameters inside it
        own = self._weights if torch.compiler.is_dynamo_compiling() else self.lstm.parameters()
        return list(own), list(self.memory.weights()) if self.memory is not None else []

    def _output(self, out: Tensor, state: PolicyState) -> CoreOutput:
        return CoreOutput(out[:, : self.hidden_size], out[:, self.hidden_size :].detach(), state)


def _dtype(x: Tensor) -> torch.dtype:
    """What an autocast region around the call asks for, else the input's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def make_core(inputs: int, config: PolicyConfig) -> Feedforward | Recurrent:
    return Feedforward(inputs, config) if config.core == "feedforward" else Recurrent(inputs, config)
