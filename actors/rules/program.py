"""`RuleProgram`: a rule as a `Program`, so that a server runs either a rule or a network."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rules.names import RuleFollower
from actors.types.actions import ActionMasks


class RuleProgram:
    """A `Program` of a rule. Rules do not sample."""

    def __init__(self, rule: RuleFollower) -> None:
        self._rule = rule

    def run(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        states: PolicyState,
        rows: NDArray[np.int64],
        noise: NDArray[np.float64],
        greedy: NDArray[np.bool_],
        keep: bool = True,
    ) -> ActOutput:
        """See `Program.run`; noise and greedy rows have no effect."""
        index = torch.from_numpy(rows)
        before = PolicyState(*(t.cpu() for t in states.rows(index.to(states.h.device))))
        decision, after = self._rule.act(obs, blueprint_indices, masks, before, np.full_like(noise, 0.5))
        if keep:
            for tensor, updated in zip(states, after, strict=True):
                tensor.index_copy_(1, index.to(tensor.device), updated.to(tensor.device))
        return decision
