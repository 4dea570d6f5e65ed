"""What a person is told about settings that a recurrent policy bears badly: once each, and not without reason."""

from __future__ import annotations

from typing import Any

import pytest

from actors.transport.memory import MemoryStore
from learner.config import LearnerConfig
from learner.config_warnings import ConfigWarnings
from tests.support.toy_learner import ToyProducer, make_learner


def told(recurrent: bool = True, kl: float = 0.0, longest: int = 25, **fields: Any) -> list[str]:
    notes: list[str] = []
    notices = ConfigWarnings(LearnerConfig(**fields).for_core(recurrent), recurrent, notes)
    for _ in range(3):
        notices.before_training()
        notices.after_update({"kl": kl}, longest)
    return notes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lr": 3e-4}, "learner.lr is 0.0003"),
        ({"update_epochs": 2}, "learner.update_epochs is 2"),
        ({"kl": 0.031}, "KL of 0.031, above 0.03"),
        ({"chunk_length": 24}, "episodes of 25 steps are cut into chunks of 24"),
    ],
)
def test_each_is_told_once_for_a_recurrent_core_and_never_for_a_feedforward_one(
    fields: dict[str, Any], words: str
) -> None:
    (note,) = told(**fields)
    assert words in note
    assert told(recurrent=False, **fields) == []


def test_the_defaults_say_nothing() -> None:
    assert told() == told(kl=0.03, lr=2.5e-4, chunk_length=32, longest=32) == []


def test_a_learner_hands_its_notices_on(tmp_path: Any) -> None:
    store = MemoryStore()
    learner = make_learner(tmp_path, store, updates=2, lr=1e-3, chunk_length=2, burn_in=2)
    learner.run(ToyProducer(store))
    assert [note.split(" ")[0] for note in learner.notes] == ["learner.lr", "episodes"]
