"""Warnings about metrics: once each, and only with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from learner.config import LearnerConfig
from learner.metric_warnings import MetricWarnings
from tests.support.learning.toy_learner import ToyProducer, make_learner
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("metrics", "fields", "words"),
    [
        ({"ratio_error": 1.1e-3}, {}, "off by 0.0011, more than 0.001"),
        ({"ratio_error": 2.1e-2}, {"precision": "bf16"}, "off by 0.021, more than 0.02"),
        ({"lag_kl": 0.11}, {}, "0.11 nats away from the one that learns"),
        ({"kl": 0.03, "kl_limit": 0.03, "lag_kl": 0.1, "ratio_error": 1e-3}, {}, None),
        ({"kl": 9.0}, {}, None),  # learner.target_kl null
        ({"ratio_error": 1.9e-2}, {"precision": "bf16"}, None),  # rounding
    ],
)
def test_each_is_given_once_and_none_within_its_limit(
    metrics: dict[str, float], fields: dict[str, Any], words: str | None
) -> None:
    notes = list[str]()
    metric_warnings = MetricWarnings(LearnerConfig(**fields), notes)
    for _ in range(3):
        metric_warnings.after_update({"kl": 0.0, "lag_kl": 0.0} | metrics)
    assert [words is not None and words in note for note in notes] == [True] * (words is not None)


def test_a_kl_that_stays_high_is_reported_and_reported_again() -> None:
    notes: list[str] = []
    metric_warnings = MetricWarnings(LearnerConfig(), notes)
    counts = [0]
    for update in range(1, 60):
        metric_warnings.after_update({"kl": 0.02 if update == 30 else 0.05, "kl_limit": 0.03, "lag_kl": 0.0})
        counts.append(len(notes))
    assert [counts.index(n) for n in range(1, len(notes) + 1)] == [5, 10, 20, 35, 40, 50]
    assert notes[0].startswith("5 updates in a row moved the policy too far, the last one by a KL of 0.05, above 0.03")


def test_a_learner_adds_its_warnings_to_its_notes(store: Store, tmp_path: Path) -> None:
    learner = make_learner(tmp_path, store, updates=5, lr=1e-2, target_kl=1e-9)
    learner.run(ToyProducer(store))
    (note,) = learner.notes
    assert note.startswith("5 updates in a row moved the policy too far, the last one by a KL of ")
