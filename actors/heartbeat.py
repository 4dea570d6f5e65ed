"""Heartbeats tell a slow process from a hung one: `Heartbeat` counts them, `StallTimer` times their absence."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rollout.wave import Policy
from actors.types.actions import ActionMasks


class Heartbeat:
    """Calling it is one beat; `beats` may be read by another thread."""

    def __init__(self) -> None:
        self.beats = 0

    def __call__(self) -> None:
        self.beats += 1


class StallTimer:
    """Seconds that something was seen to stand still. While nobody looked, nobody knows: between two looks, `UNSEEN_S`
    count at most."""

    UNSEEN_S = 1.0

    def __init__(self) -> None:
        self._still_s, self._looked_s = 0.0, time.monotonic()

    def look(self) -> float:
        now = time.monotonic()
        self._still_s += min(self.UNSEEN_S, now - self._looked_s)
        self._looked_s = now
        return self._still_s

    def moved(self) -> None:
        self._still_s, self._looked_s = 0.0, time.monotonic()


class Felt:
    """A policy whose every step is a beat."""

    def __init__(self, policy: Policy, heartbeat: Heartbeat) -> None:
        self._policy, self._heartbeat = policy, heartbeat

    def initial_state(self, batch: int) -> PolicyState:
        return self._policy.initial_state(batch)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        self._heartbeat()
        return self._policy.act(obs, blueprint_indices, masks, state, noise, deterministic)
