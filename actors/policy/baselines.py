"""Baseline policies, with the interface of the learned policy and without state."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from actors.policy.network import ActOutput
from actors.policy.state import PolicyState, StateSizes
from actors.types.actions import ActionMasks, Op
from actors.types.continuous import to_cells
from actors.types.spaces import Spaces


def rule_output(spaces: Spaces, actions: NDArray[np.int64], masks: ActionMasks) -> ActOutput:
    """Return the `ActOutput` of a rule that chose `actions [N, H]`; its log-probs and values are 0."""
    zeros = np.zeros(actions.shape, dtype=np.float32)
    values = zeros[:, 0]
    return ActOutput(actions, zeros, masks.in_force(spaces.action, actions), values, values, values)


class _StatelessPolicy(ABC):
    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces

    @property
    def state_sizes(self) -> StateSizes:
        return StateSizes()

    def initial_state(self, batch: int) -> PolicyState:
        return PolicyState.zeros(self.state_sizes, batch)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        return rule_output(self.spaces, self._choose(masks, noise), masks), state

    @abstractmethod
    def _choose(self, masks: ActionMasks, noise: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return actions `[N, H]`."""


class NeverGrow(_StatelessPolicy):
    """Always chooses WAIT, so that the host is trained without growth."""

    def _choose(self, masks: ActionMasks, noise: NDArray[np.float64]) -> NDArray[np.int64]:
        actions = np.zeros(noise.shape, dtype=np.int64)
        actions[:, 0] = Op.WAIT
        return actions


class RandomPolicy(_StatelessPolicy):
    """Draws every head uniformly from its legal choices, in the order of the heads, and u of continuous heads from
    [-1, 1)."""

    def _choose(self, masks: ActionMasks, noise: NDArray[np.float64]) -> NDArray[np.int64]:
        spec = self.spaces.action
        actions = np.zeros(noise.shape, dtype=np.int64)
        for k, head in enumerate(spec.heads):
            if head.continuous:
                actions[:, k] = to_cells(2.0 * noise[:, k] - 1.0)
                continue
            # A head's mask in force depends only on the heads before it, which have been drawn.
            mask = spec.split(masks.in_force(spec, actions))[k]
            cumulative = mask.cumsum(1)
            rank = np.floor(noise[:, k] * cumulative[:, -1]).astype(np.int64) + 1
            actions[:, k] = (cumulative >= rank[:, None]).argmax(1)
        return actions
