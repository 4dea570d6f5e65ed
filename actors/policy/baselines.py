"""Policies to compare with: they act through the same interface and carry no state."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from actors.policy.network import ActOutput
from actors.policy.state import PolicyState, StateSizes
from actors.types.actions import ActionMasks, Op
from actors.types.spaces import Spaces


def ruled(spaces: Spaces, actions: NDArray[np.int64], masks: ActionMasks) -> ActOutput:
    """The decision of a rule, which has neither probabilities nor values."""
    zeros = np.zeros(actions.shape, dtype=np.float32)
    values = zeros[:, 0]
    return ActOutput(actions, zeros, masks.in_force(spaces.action, actions), values, values, values)


class _Stateless(ABC):
    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces

    def initial_state(self, batch: int) -> PolicyState:
        return PolicyState.zeros(StateSizes(), batch)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        return ruled(self.spaces, self._choose(masks, noise), masks), state

    @abstractmethod
    def _choose(self, masks: ActionMasks, noise: NDArray[np.float64]) -> NDArray[np.int64]:
        """`[N, H]`."""


class NeverGrow(_Stateless):
    """WAITs: the host as it would be without Tamiyo."""

    def _choose(self, masks: ActionMasks, noise: NDArray[np.float64]) -> NDArray[np.int64]:
        actions = np.zeros(noise.shape, dtype=np.int64)
        actions[:, 0] = Op.WAIT
        return actions


class RandomPolicy(_Stateless):
    """Every head uniform over its legal choices, in the heads' order."""

    def _choose(self, masks: ActionMasks, noise: NDArray[np.float64]) -> NDArray[np.int64]:
        spec = self.spaces.action
        actions = np.zeros(noise.shape, dtype=np.int64)
        for head in range(len(spec.heads)):
            # the masks in force depend on the choices so far, and only on those
            mask = spec.split(masks.in_force(spec, actions))[head]
            cumulative = mask.cumsum(1)
            wanted = np.floor(noise[:, head] * cumulative[:, -1]).astype(np.int64) + 1
            actions[:, head] = (cumulative >= wanted[:, None]).argmax(1)
        return actions
