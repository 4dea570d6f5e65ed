"""Training learns a task that needs memory; the same policy without its state stays at chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.learning.in_process import Run
from benchmarks.learning.memory_rungs import RUNGS

CONCEPT = RUNGS[0]
STEPS = 6144


def score(folder: Path, forgetful: bool, *kwargs: str, steps: int = STEPS) -> tuple[float, Run]:
    """Share of right answers over 400 episodes that training never saw, after `steps` steps of training."""
    rung = replace(CONCEPT, kwargs=kwargs)
    run = Run(rung.acting(), rung.learner(), folder, seed=0, forgetful=forgetful)
    run.train(steps)
    return float(np.mean(run.returns(range(10**6, 10**6 + 400), deterministic=True))), run


def test_it_learns_what_needs_memory(tmp_path: Path) -> None:
    right, run = score(tmp_path, forgetful=False)
    assert right >= 0.95
    assert run.transport.ledger().trained * 8 >= STEPS - 1024  # and every episode went the whole way
    assert max(m.get("ratio_error", 0.0) for m in run.history) < 1e-4


def test_without_its_state_it_stays_at_chance(tmp_path: Path) -> None:
    """A policy without memory answers all alike: its share differs from a half as that of 400 fair coins does, by more
    than 0.1 once in 16,000 times."""
    right, _ = score(tmp_path, forgetful=True)
    assert abs(right - 0.5) < 0.1


def test_the_control_fails_for_want_of_memory_alone(tmp_path: Path) -> None:
    """Where cue and question come in one step, it learns the task."""
    right, _ = score(tmp_path, True, "length=1", steps=2048)
    assert right >= 0.95
