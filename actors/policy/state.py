"""`PolicyState`: the recurrent state of the policy, as tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from actors.config import PolicyConfig
from actors.types.episode import RecurrentState


class PolicyState(NamedTuple):
    """Recurrent state `[n, batch, width]`, zero at the start of an episode.

    Parts that a core lacks are `[0, batch, 0]`: all four without recurrence, `cells` and `usage` without a memory.
    """

    h: Tensor  # [num_layers, batch, hidden]
    c: Tensor  # [num_layers, batch, hidden]
    cells: Tensor  # [memory_cells, batch, memory_size]
    usage: Tensor  # [memory_cells, batch, 1]

    @classmethod
    def zeros(cls, sizes: StateSizes, batch: int, device: torch.device | str | None = None) -> PolicyState:
        return cls(*(torch.zeros(n, batch, width, device=device) for n, width in sizes))

    def row(self, index: int) -> RecurrentState:
        """Copy one row to numpy arrays `[n, 1, width]`. (A view would keep the whole batch in memory.)"""
        row = slice(index, index + 1)
        return RecurrentState(
            *(t.detach().numpy()[:, row].copy() if t.is_cpu else t[:, row].cpu().numpy() for t in self)
        )

    def rows(self, rows: Tensor) -> PolicyState:
        """Select rows by index."""
        return PolicyState(*(t.index_select(1, rows) for t in self))

    def reset_rows(self, rows: Tensor) -> PolicyState:
        """Return the state with `rows` (bool `[batch]`) set to zero."""
        keep = ~rows[None, :, None]
        return PolicyState(*(torch.where(keep, t, torch.zeros_like(t)) for t in self))


class StateSizes(NamedTuple):
    """(n, width) of each field of a policy's state."""

    h: tuple[int, int] = (0, 0)
    c: tuple[int, int] = (0, 0)
    cells: tuple[int, int] = (0, 0)
    usage: tuple[int, int] = (0, 0)

    @classmethod
    def from_config(cls, config: PolicyConfig) -> StateSizes:
        """Return the sizes for the core that `config` describes."""
        if config.core == "feedforward":
            return cls()
        lstm = (config.num_layers, config.hidden_size)
        if config.core == "lstm":
            return cls(lstm, lstm)
        return cls(lstm, lstm, (config.memory_cells, config.memory_size), (config.memory_cells, 1))

    @property
    def floats(self) -> int:
        """Number of floats in the state of one environment."""
        return sum(n * width for n, width in self)
