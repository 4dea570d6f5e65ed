"""The never-grow twin: the same host on the same minibatches, without growth. Its accuracy is a baseline for rewards.

The twin depends on the episode's seed but not on the actions. Subtracting a multiple of its gain (a control variate)
therefore leaves the expected policy gradient unchanged, and removes variance that comes from tasks and initial weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from actors.config import EnvConfig

Trajectory = tuple[float, ...]  # [horizon + 1], validation accuracy in points; the untrained host first

COEFFICIENTS = Path(__file__).with_name("twin_shares.json")
"""Coefficients of every training family, fitted by `python -m benchmarks.environment.fit_twin`."""

DEFAULT_COEFFICIENT = 1.0
"""For tasks without a fitted one: the whole gain of the twin, which a policy that always waits has too."""


def twin_config(config: EnvConfig) -> EnvConfig:
    """Return the configuration of the twin: the same host and data, with rewards that need no twin."""
    return replace(config, reward="objective", reference="untrained", time_limit="terminated")


def padded(accuracies: Sequence[float], horizon_epochs: int) -> Trajectory:
    """Extend a trajectory that the governor ended to the horizon, with its last accuracy."""
    return (*accuracies, *[accuracies[-1]] * (horizon_epochs + 1 - len(accuracies)))


def twin_coefficient(task_id: str) -> float:
    """Return the multiple of the twin's gain that rewards subtract."""
    return fitted_coefficients().get(task_id, DEFAULT_COEFFICIENT)


@cache
def fitted_coefficients() -> dict[str, float]:
    """Return the fitted coefficients by task family."""
    return {name: row["share"] for name, row in json.loads(COEFFICIENTS.read_text())["families"].items()}
