"""`PolicyState`: what the policy remembers between steps, and its way to and from numpy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from actors.episode import RecurrentState


class PolicyState(NamedTuple):
    """LSTM state, each `[num_layers, batch, hidden]`; zero at the start of an episode."""

    h: Tensor
    c: Tensor

    def row(self, index: int) -> RecurrentState:
        """A copy of one row as numpy `[num_layers, 1, hidden]` (a slice would keep the whole batch alive)."""
        return RecurrentState(*(t[:, index : index + 1].detach().cpu().clone().numpy() for t in self))

    def reset_rows(self, rows: Tensor) -> PolicyState:
        """The state with `rows` (bool `[batch]`) back at zero; the others are untouched."""
        keep = ~rows[None, :, None]
        return PolicyState(*(torch.where(keep, t, torch.zeros_like(t)) for t in self))
