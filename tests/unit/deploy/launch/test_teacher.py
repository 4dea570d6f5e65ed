"""The teacher of pretraining: what it surveys, what its regressions learn, and what it demonstrates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyRegressor

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.rules.names import rule_policy
from actors.types.actions import ALPHA_TARGETS, Op
from deploy.config.schema import Config, ImitationConfig
from deploy.evaluation.play import play
from deploy.imitation import teacher, trials
from deploy.imitation.teacher import EPOCH, SURVEY, SURVEYS, Survey, demonstrate, fit_judgement, kept_survey
from deploy.imitation.trials import LOOK, SIZES, TARGET, TRIALS, Judgement

ENV = EnvConfig(
    tasks=("spirals", "moons"), host_width=(2, 8), horizon_epochs=(8, 12), inner_steps=2, device="cpu", slots=2
)
CONFIG = Config(env=ENV, imitation=ImitationConfig(episodes=32, hosts=16))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Settings of runs in one folder, which therefore share their survey."""
    return replace(CONFIG, run=replace(CONFIG.run, root=str(tmp_path_factory.mktemp("runs"))))


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a pool of processes, which each need seconds to start."""
    monkeypatch.setattr(teacher, "workers", ThreadPoolExecutor)


def judging(*expected: float) -> Any:
    """Two regressions that expect the same of everything."""
    return Judgement(*(DummyRegressor(strategy="constant", constant=x).fit([[0]], [x]) for x in expected))


def test_a_survey_knows_what_each_column_is_worth_although_none_was_asked_whether_it_pays() -> None:
    every_gain_pays = {"points_per_doubling": 1e-6, "points_per_compute_doubling": 1e-6}
    env = replace(ENV, tasks=("spirals",), **every_gain_pays)
    seeds = [1, 2, 3, 4]
    found = teacher._survey(replace(env, points_per_doubling=4.0), (env.tasks[0], seeds))
    never, *trials = (
        play(lambda s, r=r: rule_policy(r, s), env, SURVEY, seeds, read_test=False)
        for r in ("never", *(f"trial:{size}@{LOOK}-2,alpha={ALPHA_TARGETS[TARGET]}" for size in SIZES))
    )
    joined = [(i, k, row) for k, rows in enumerate(trials) for i, row in enumerate(rows) if row.joined]
    assert len(joined) > 3
    for i, k, row in joined:
        expected = row.gain - never[i].gain, row.doublings, row.compute
        measured = found.gains[i, k], found.doublings[i, k], found.compute[i, k]
        np.testing.assert_allclose(measured, expected, atol=1e-9)
    assert (found.doublings[:, : len(SIZES)] > 0).all()


def test_the_regressions_give_up_what_will_not_pay() -> None:
    """Feature 0 of a host says whether columns will gain 10 points there. Trials cost two doublings of compute, and
    what is still to come of them falls in ten epochs."""
    rng = np.random.default_rng(0)
    n, epochs = 400, 10
    pays = rng.random(n) < 0.5
    host = np.repeat(np.arange(n), len(SIZES) * epochs)
    size = np.tile(np.repeat(np.arange(len(SIZES)), epochs), n)
    left = np.tile(np.arange(epochs + 1, 1, -1), n * len(SIZES))
    spent = 2.0 * (epochs + 1 - left) / epochs
    seen = np.stack([pays + 0.1 * rng.standard_normal(n), rng.standard_normal(n)], axis=1)
    steps = np.stack([seen[host, 0], left], axis=1)
    alone = np.array([len(trial) == 1 for trial in TRIALS])
    gains = np.where(pays[:, None], np.where(alone, 10.0, 12.0), np.where(alone, -1.0, 0.0))
    known = Survey(
        seen, np.tile([2.0, 1.0], (n, 1)), gains, 1.0 * (pays[:, None] | alone),
        np.tile(np.where(alone, 2.0, np.log2(7.0)), (n, 1)), steps,
        np.rec.fromarrays([host, size, left, spent, 2.0 - spent, np.where(pays[host], 8.0, -3.0)], dtype=EPOCH),
    )  # fmt: skip
    found = fit_judgement(known)
    good, bad = np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]])
    # Leaves mix some hosts of the other kind in. Two columns cost 1 + 3 + 3 times the compute.
    assert found.start.predict(good)[0] == pytest.approx(12.0 - 2.0 - np.log2(7.0), abs=2.0)
    assert found.start.predict(bad)[0] == pytest.approx(0.0, abs=2.5)  # given up at once, for nothing
    kept = fit_judgement(known, prune=False).start.predict(bad)[0]
    assert kept == pytest.approx(-np.log2(7.0), abs=1.5)  # trained to the end, for nothing
    assert found.worth.predict([[1.0, 5.0]])[0] == pytest.approx(8.0, abs=2.5)
    assert found.worth.predict([[0.0, 5.0]])[0] == pytest.approx(0.0, abs=2.0)


GIVEN_UP = [Op.GERMINATE, Op.ADVANCE, Op.PRUNE]


@pytest.mark.parametrize(
    ("limits", "tried", "price", "compute_price", "worth", "joins"),
    [
        ({"column_slots": 1}, "column_quad", 0.0, 1e-9, 1e3, True),
        ({"column_slots": 1}, "column_quad", 1e3, 1e-9, 1e3, False),
        ({"column_slots": 1}, "column_quad", 0.0, 1.0, -1.0, False),
        ({"budget_ratio": 4.0}, "column_double", 0.0, 1.0, -1.0, False),
    ],
)
def test_the_teacher_demonstrates_what_it_expects_to_pay(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, Any],
    tried: str,
    price: float,
    compute_price: float,
    worth: float,
    joins: bool,
) -> None:
    """With room for one column, all episodes try the widest; it joins in the end, or is given up there, or half way."""
    monkeypatch.setattr(teacher, "fit_judgement", lambda survey, jobs, prune: judging(100.0, worth))
    prices = {"points_per_doubling": price, "points_per_compute_doubling": compute_price}
    episodes = demonstrate(replace(config, env=replace(config.env, **limits, **prices)), 2)
    assert [e.task_id for e in episodes].count("moons") == 16
    assert len({e.seed for e in episodes}) == len(episodes) == 32
    ops = [e.actions[e.actions[:, 0] != Op.WAIT, 0].tolist() for e in episodes]
    joined = [own for own in ops if own != GIVEN_UP]  # one that makes the model worse does not join for nothing either
    assert joined == [[Op.GERMINATE, Op.ADVANCE, Op.ADVANCE, Op.FOSSILIZE]] * len(joined)
    assert bool(joined) == joins
    for episode in episodes:
        acted = np.flatnonzero(episode.actions[:, 0])
        assert episode.actions[acted[0], 2] == blueprint_index(tried)
        assert acted[0] == LOOK
        assert acted[2] == (-(-len(episode) // 2) if worth < 0 else len(episode) - 2)


def test_runs_share_a_survey_unless_it_would_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, folder = replace(CONFIG.run, root=str(tmp_path)), tmp_path / SURVEYS
    config = replace(CONFIG, run=run, imitation=ImitationConfig(hosts=4))
    with ThreadPoolExecutor(1) as pool:
        first = kept_survey(config, pool)
        (file,) = folder.iterdir()
        written = file.stat().st_mtime_ns
        again = kept_survey(replace(config, run=replace(config.run, seed=5)), pool)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
        assert [path.stat().st_mtime_ns for path in folder.iterdir()] == [written]
        assert first.epochs["host"].max() == 3
        kept_survey(replace(config, env=replace(ENV, inner_steps=3)), pool)
        monkeypatch.setattr(trials, "DESIGN", ("size",))  # what the teacher reads of a column
        kept_survey(config, pool)
    assert len(list(folder.iterdir())) == 3
