"""`RunReport`: what a report to a file and a report to an endpoint share: the rewards, and when a report ends."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.config import require
from actors.sessions.session import RecordedStep
from actors.slots.objective import Prices, Standing, objective, objective_reward
from actors.types.actions import ActionMasks

log = logging.getLogger(__name__)


class Observed(NamedTuple):
    """What a policy sees of one model before a decision."""

    obs: NDArray[np.float32]  # [D]
    blueprint_indices: NDArray[np.int64]  # [S]
    masks: ActionMasks  # without a batch dimension


class RunReport(ABC):
    """One training run as an episode, from its first decision to its horizon.

    For each decision, call `measured` with what was measured before it, then `record` with the policy's answer. An
    action that is not executed, or not known, ends the report: the steps before it are kept as an episode that was cut.
    """

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._standings: list[Standing] = []  # before the first decision, and after each epoch since then
        self.session: Any = None  # the `PolicySession` that decides, where the report is made in it
        self.over = False  # whether nothing more is recorded

    def measured(self, accuracy: float | None, doublings: float, compute_doublings: float) -> None:
        """Record the validation accuracy in points, and how often the model and the training compute have doubled."""
        if self.over:
            return
        if accuracy is None:
            self.stop("the validation accuracy is unknown: rewards are changes of accuracy, so give it to step()")
            return
        standing = Standing(accuracy, doublings, compute_doublings)
        if self._standings:
            self._pay(objective_reward(self._standings[-1], standing, self._prices))
        self._standings.append(standing)

    def end(self, final: Observed) -> None:
        """End the episode at the horizon, with the observation there."""
        if self.over:
            return
        if len(self._standings) < 2:
            self.stop("the horizon passed before the first decision")
            return
        first, last = self._standings[0], self._standings[-1]
        telemetry = {
            "final_accuracy": last.accuracy,
            "doublings": last.doublings,
            "compute_doublings": last.compute_doublings,
            "points_per_doubling": self._prices.doubling,
            "points_per_compute_doubling": self._prices.compute_doubling,
            "panic": 0.0,
            "objective": objective(first.worth(self._prices), last, self._prices),
        }
        self.over = True
        self._finish(final, telemetry)

    def stop(self, why: str) -> None:
        """End the report before the last recorded step, whose reward is not known or was not earned by it."""
        if self.over:
            return
        self.over = True
        log.warning("the report of this run ends here (%s): %s", why, self._cut())

    @abstractmethod
    def record(self, seen: Observed, step: RecordedStep | None) -> None:
        """Record a decision: what the policy saw, and what its session recorded, if it does."""

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as plain types; empty if nothing is recorded, or nothing more."""
        position = {} if self.over else self._position()
        return {**position, "standings": [list(standing) for standing in self._standings]} if position else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the report of a checkpoint. Raises `UserError` for a damaged state."""
        if not state:
            self.over = True
            log.warning("this run is not reported: it was resumed from a checkpoint without the steps before it")
            return
        standings = state.get("standings")
        right = isinstance(standings, list) and all(
            isinstance(x, list) and len(x) == 3 and all(isinstance(n, float) and isfinite(n) for n in x)
            for x in standings
        )
        require(right, "the report in this state is damaged: its standings are not rows of three numbers")
        self._standings = [Standing(*x) for x in state["standings"]]
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
    def _finish(self, final: Observed, telemetry: dict[str, float]) -> None:
        """End the episode as terminated."""

    @abstractmethod
    def _cut(self) -> str:
        """End the episode before its last step. Returns what became of it, for the log."""
