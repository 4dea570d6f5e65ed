"""`RuleProgram`: a rule with the interface of `TracedPolicy`, so that a server runs either."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actors.policy.state import PolicyState
from actors.rules.names import RuleFollower
from actors.types.actions import ActionMasks


class RuleProgram:
    """Inputs and outputs are those of `TracedPolicy`. Rules do not sample."""

    def __init__(self, rule: RuleFollower) -> None:
        self._rule = rule

    def greedy(
        self, obs: Tensor, blueprints: Tensor, op: Tensor, slot: Tensor, rest: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        """Return actions, log-probs, values, baseline values and the state after the step."""
        noise = np.full((len(obs), len(self._rule.spaces.action.heads)), 0.5)
        masks = ActionMasks(*(t.cpu().numpy() for t in (op, slot, rest)))
        decision, after = self._rule.act(obs.cpu().numpy(), blueprints.cpu().numpy(), masks, PolicyState(*state), noise)
        outputs = (decision.actions, decision.log_probs, decision.values, decision.baseline_values)
        return *(torch.from_numpy(a).to(obs.device) for a in outputs), *(t.to(obs.device) for t in after)

    def sampling(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the same as `greedy`; the last two inputs, noise and which rows are greedy, have no effect."""
        return self.greedy(*inputs[:-2])
