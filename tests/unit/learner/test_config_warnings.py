"""Warnings about settings and metrics that are bad for a recurrent policy: once each, and only with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from actors.transport.memory import MemoryStore
from learner.config import LearnerConfig
from learner.config_warnings import ConfigWarnings
from tests.support.learning.toy_learner import ToyProducer, make_learner


def warnings_of(
    recurrent: bool = True, longest: int = 25, metrics: dict[str, float] | None = None, **fields: Any
) -> list[str]:
    notes: list[str] = []
    config_warnings = ConfigWarnings(LearnerConfig(**fields).for_core(recurrent), recurrent, notes)
    for _ in range(3):
        config_warnings.before_training()
        config_warnings.after_update({"kl": 0.0, "lag_kl": 0.0} | (metrics or {}), longest)
    return notes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lr": 3e-4}, "learner.lr is 0.0003"),
        ({"update_epochs": 2}, "learner.update_epochs is 2"),
        ({"metrics": {"kl": 0.031}}, "KL of 0.031, above 0.03"),
        ({"chunk_length": 24}, "episodes of 25 steps are cut into chunks of 24"),
    ],
)
def test_each_is_given_once_for_a_recurrent_core_and_never_for_a_feedforward_one(
    fields: dict[str, Any], words: str
) -> None:
    (note,) = warnings_of(**fields)
    assert words in note
    assert warnings_of(recurrent=False, **fields) == []


def test_the_defaults_give_no_warning() -> None:
    near = {"kl": 0.03, "lag_kl": 0.1, "ratio_error": 1e-3}
    assert warnings_of() == warnings_of(metrics=near, lr=2.5e-4, chunk_length=32, longest=32) == []


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize(
    ("metrics", "fields", "words"),
    [
        ({"ratio_error": 1.1e-3}, {}, "off by 0.0011, more than 0.001"),
        ({"ratio_error": 2.1e-2}, {"amp": "bf16"}, "off by 0.021, more than 0.02"),
        ({"lag_kl": 0.11}, {}, "0.11 nats away from the one that learns"),
    ],
)
def test_alarms_are_raised_once_and_for_every_core(
    recurrent: bool, metrics: dict[str, float], fields: dict[str, Any], words: str
) -> None:
    (note,) = warnings_of(recurrent, metrics=metrics, **fields)
    assert words in note


def test_rounding_in_bf16_is_no_alarm() -> None:
    assert warnings_of(metrics={"ratio_error": 1.9e-2}, amp="bf16") == []


def test_a_learner_adds_its_warnings_to_its_notes(tmp_path: Any) -> None:
    store = MemoryStore()
    learner = make_learner(tmp_path, store, updates=2, lr=1e-3, chunk_length=2, burn_in=2)
    learner.run(ToyProducer(store))
    assert [note.split(" ")[0] for note in learner.notes] == ["learner.lr", "episodes"]
