"""A run ends by its steps, or by the return of its last hundred episodes."""

from __future__ import annotations

from pathlib import Path

from learner.config import LearnerConfig
from learner.run.checkpoint import LearnerProgress
from learner.run_limits import RunLimits, described
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.stores import Store


def test_a_run_by_steps_ends_with_the_update_that_takes_the_last_one(store: Store, tmp_path: Path) -> None:
    learner = make_learner(tmp_path, store, updates=1, total_steps=40)
    progress = learner.run(ToyProducer(store))
    taken = [row["env_steps"] for row in lines(tmp_path / "metrics.jsonl")]
    assert taken[-1] == progress.env_steps >= 40 > taken[-2]


def test_a_run_by_return_ends_when_the_last_hundred_whole_episodes_have_it() -> None:
    notes = list[str]()
    limits = RunLimits(LearnerConfig(stop_at_return=10.0), notes)

    def after(count: int, gained: float, end: str = "environment") -> bool:
        limits.after_update([{"return": gained, "end_reason": end}] * count)
        return limits.reached(LearnerProgress())

    assert not after(99, 10.0)  # too few
    assert not after(50, 1e9, "cut")  # segments have no return
    assert not after(1, 0.0)  # 990 of 100
    assert not after(99, 10.0)  # the 0 is among the last hundred
    assert notes == []
    assert after(1, 10.0)
    (note,) = notes
    assert "returned 10 on average" in note


def test_what_a_run_waits_for_is_said() -> None:
    assert described(LearnerConfig(updates=7)) == "7 updates"
    config = LearnerConfig(total_steps=9, max_seconds=60.0, stop_at_return=475.0)
    assert described(config) == "9 steps, 60 s or a mean return of 475 over 100 episodes, whichever is first"
