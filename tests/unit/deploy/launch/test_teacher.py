"""The teacher of pretraining: what it surveys, what its forest learns, and what it demonstrates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.rules.gains import ColumnChoice
from actors.rules.schedule import NEVER, Scheduled
from deploy.config.schema import Config, ImitationConfig
from deploy.evaluation import suite
from deploy.evaluation.play import play
from deploy.imitation import teacher
from deploy.imitation.teacher import (
    SURVEY,
    SURVEYS,
    Survey,
    demonstrate,
    fit_forest,
    kept_survey,
    survey,
)

ENV = EnvConfig(
    tasks=("spirals", "moons"), host_width=(2, 8), horizon_epochs=(8, 12), inner_steps=2, device="cpu", slots=2
)
CHOICES = (ColumnChoice("same", 3), ColumnChoice("quad", -5))
CONFIG = Config(env=ENV, imitation=ImitationConfig(episodes=32, hosts=16))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return replace(CONFIG, run=replace(CONFIG.run, root=str(tmp_path)))


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a pool of processes, which each need seconds to start; and two choices in place of all."""
    monkeypatch.setattr(teacher, "workers", ThreadPoolExecutor)
    monkeypatch.setattr(teacher, "CHOICES", CHOICES)


def test_a_survey_measures_what_the_evaluation_measures() -> None:
    waves = [("spirals", [1, 2, 3]), ("moons", [4, 5])]
    with ThreadPoolExecutor(1) as pool:
        seen = survey(CONFIG, CHOICES, waves, pool)  # type: ignore[arg-type]
    for rows, (task, seeds) in zip((slice(0, 3), slice(3, 5)), waves, strict=True):
        own = replace(suite.on_family(suite.protocol(ENV, 1.0), task), host_width=ENV.host_width)
        plans = [NEVER, *(choice.schedule for choice in CHOICES)]
        gains = np.array(
            [[r.gain for r in play(lambda s, p=p: Scheduled(s, p), own, SURVEY, seeds, read_test=False)] for p in plans]
        )
        np.testing.assert_allclose(seen.gains[rows], (gains[1:] - gains[0]).T, atol=1e-9)
    assert np.isfinite(seen.features).all()


def test_the_forest_finds_what_a_feature_says() -> None:
    """The first column pays where feature 0 is high and feature 1 low, which no sum of the two can say."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 5))
    truth = np.stack([8.0 * ((features[:, 0] > 0) & (features[:, 1] < 0)), np.full(600, 2.0)], 1)
    gains = fit_forest(CHOICES, Survey(features, truth + rng.normal(0.0, 4.0, truth.shape)))
    assert np.abs(gains.predict(features) - truth).mean() < 1.2
    assert np.isfinite(gains.predict(np.full((1, 5), np.nan))).all()


def test_the_teacher_demonstrates_what_pays(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """All episodes follow the one rule that gains far more, according to the survey."""
    fitted: list[Survey] = []

    def told(choices: Any, seen: Survey) -> Any:
        fitted.append(seen)
        return fit_forest(choices, seen._replace(gains=np.array([[0.0, 100.0]] * len(seen.gains))))

    monkeypatch.setattr(teacher, "fit_forest", told)
    episodes = demonstrate(config, 2)
    assert len(fitted[0].gains) == 16
    assert [e.task_id for e in episodes].count("moons") == 16
    assert len({e.seed for e in episodes}) == len(episodes) == 32
    for episode in episodes:
        grown = episode.actions[episode.actions[:, 0] == 1]
        assert grown[:, 2].tolist() == [blueprint_index("column_quad")]
        assert np.flatnonzero(episode.actions[:, 0] == 1)[0] == max(3, len(episode) - 5)
    assert len({e.telemetry["rent_weight"] for e in episodes}) == 32  # each at a price of its own


def test_runs_share_a_survey_unless_it_would_differ(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EnvConfig] = []

    def counted(config: Config, *rest: Any) -> Survey:
        asked.append(config.env)
        return survey(config, *rest)

    monkeypatch.setattr(teacher, "survey", counted)
    with ThreadPoolExecutor(1) as pool:
        first = kept_survey(config, CHOICES, pool)  # type: ignore[arg-type]
        again = kept_survey(replace(config, run=replace(config.run, seed=5)), CHOICES, pool)  # type: ignore[arg-type]
        np.testing.assert_array_equal(again.gains, first.gains)
        np.testing.assert_array_equal(again.features, first.features)
        assert len(asked) == 1
        kept_survey(replace(config, env=replace(ENV, inner_steps=3)), CHOICES, pool)  # type: ignore[arg-type]
        kept_survey(config, CHOICES[:1], pool)  # type: ignore[arg-type]
    assert len(asked) == 3
    assert len(list((Path(config.run.root) / SURVEYS).iterdir())) == 3
