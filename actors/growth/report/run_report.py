"""`RunReport`: what a report to a file and a report to an endpoint share: the rewards, and when a report ends."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.config import require
from actors.sessions.session import PolicySession, RecordedStep
from actors.slots.objective import objective, objective_reward
from actors.types.actions import ActionMasks

log = logging.getLogger(__name__)


class RunReport(ABC):
    """One training run as an episode, from its first decision to its horizon.

    For each decision, call `measured` with what was measured before it, then `record` with the policy's answer. An
    action that is not executed, or not known, ends the report: the steps before it are kept as an episode that was cut.
    """

    def __init__(self, points_per_doubling: float, horizon_epochs: int) -> None:
        self._price, self._horizon_epochs = points_per_doubling, horizon_epochs
        self._rents: list[float] = []  # doublings, of the epochs since the first decision
        self._accuracies: list[float] = []  # points: before the first decision, and after each of these epochs
        self.session: PolicySession | None = None  # that decides, where the report is made in it
        self.over = False  # whether nothing more is recorded

    def measured(self, accuracy: float | None, rent: float) -> None:
        """Record the validation accuracy in points, and the rent of the epoch since the last decision in doublings."""
        if self.over:
            return
        if accuracy is None:
            self.stop("the validation accuracy is unknown: rewards are changes of accuracy, so give it to step()")
            return
        if self._accuracies:
            before = self._accuracies[-1]
            self._rents.append(rent)
            self._pay(objective_reward(accuracy, before, rent, self._price, self._horizon_epochs))
        self._accuracies.append(accuracy)

    def end(
        self, obs: NDArray[np.float32], blueprint_indices: NDArray[np.int64], masks: ActionMasks, growth_ratio: float
    ) -> None:
        """End the episode at the horizon, with the observation there."""
        if self.over:
            return
        if not self._rents:
            self.stop("the horizon passed before the first decision")
            return
        first, last = self._accuracies[0], self._accuracies[-1]
        telemetry = {
            "final_accuracy": last,
            "growth_ratio": growth_ratio,
            "rent": sum(self._rents) / len(self._rents),
            "rent_weight": self._price,
            "panic": 0.0,
            "objective": objective(last, first, self._rents, self._price, self._horizon_epochs),
        }
        self.over = True
        self._finish(obs, blueprint_indices, masks, telemetry)

    def stop(self, why: str) -> None:
        """End the report before the last recorded step, whose reward is not known or was not earned by it."""
        if self.over:
            return
        self.over = True
        log.warning("the report of this run ends here (%s): %s", why, self._cut())

    @abstractmethod
    def record(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        step: RecordedStep | None,
    ) -> None:
        """Record a decision: what the policy saw, and what its session recorded, if it does."""

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as plain types; empty if nothing is recorded, or nothing more."""
        position = {} if self.over else self._position()
        return {**position, "accuracies": list(self._accuracies), "rents": list(self._rents)} if position else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the report of a checkpoint. Raises `UserError` for a damaged state."""
        if not state:
            self.over = True
            log.warning("this run is not reported: it was resumed from a checkpoint without the steps before it")
            return
        for name in ("accuracies", "rents"):
            values = state.get(name)
            right = isinstance(values, list) and all(isinstance(x, float) and isfinite(x) for x in values)
            require(right, f"the report in this state has damaged {name}")
        self._accuracies, self._rents = list(state["accuracies"]), list(state["rents"])
        self._continue(state)

    @abstractmethod
    def _position(self) -> dict[str, Any]:
        """Return what `_continue` needs; empty before the first step."""

    @abstractmethod
    def _continue(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `_position`."""

    @abstractmethod
    def _pay(self, reward: float) -> None:
        """Record the reward of the last step."""

    @abstractmethod
    def _finish(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        telemetry: dict[str, float],
    ) -> None:
        """End the episode as terminated."""

    @abstractmethod
    def _cut(self) -> str:
        """End the episode before its last step. Returns what became of it, for the log."""
