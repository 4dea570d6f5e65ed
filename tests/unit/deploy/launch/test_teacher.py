"""The teacher of pretraining: what it surveys, what its regressions learn, and what it demonstrates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.rules.names import rule_policy
from actors.rules.reader import ObservationReader
from actors.slots.spaces import seed_spaces
from actors.types.actions import ALPHA_TARGETS, Op
from deploy.config.schema import Config, ImitationConfig
from deploy.evaluation.play import play
from deploy.imitation import teacher, trials
from deploy.imitation.teacher import EPOCH, SURVEY, SURVEYS, Survey, demonstrate, fit_judgement, kept_survey
from deploy.imitation.trials import BETWEEN, LEFT, LOOK, MARGIN, SIZES, TARGET, TRIALS, Judgement, worth_now

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


class Fixed:
    """A regression that expects the same of everything."""

    def __init__(self, expected: float) -> None:
        self.expected = expected

    def predict(self, features: Any) -> Any:
        return np.full(len(features), self.expected)


def judging(start: float, worth: float) -> Any:
    return Judgement(Fixed(start), Fixed(worth))


def test_a_survey_knows_what_each_column_is_worth_although_none_was_asked_whether_it_pays() -> None:
    every_gain_pays = {"points_per_doubling": 1e-6, "points_per_compute_doubling": 1e-6}
    env = replace(ENV, tasks=("spirals",), **every_gain_pays)
    seeds = [1, 2, 3, 4]
    found = teacher._survey(replace(env, points_per_doubling=4.0), (env.tasks[0], seeds))
    never, *trials = (
        play(lambda s, r=r: rule_policy(r, s), env, SURVEY, seeds, read_test=False)
        for r in ("never", *(f"trial:{size}@{LOOK}-2,alpha={ALPHA_TARGETS[TARGET]}" for size in SIZES))
    )
    joined = 0
    for k, rows in enumerate(trials):
        for i, row in enumerate(rows):
            if row.joined:
                joined += 1
                np.testing.assert_allclose(found.gains[i, k], row.gain - never[i].gain, atol=1e-9)
                np.testing.assert_allclose(found.doublings[i, k], row.doublings)
                np.testing.assert_allclose(found.compute[i, k], row.compute)
    assert joined > 3
    assert (found.doublings[:, : len(SIZES)] > 0).all()
    host, size, left, spent, effort, _ = (found.epochs[name] for name in EPOCH.names or ())
    np.testing.assert_allclose(2**spent + 2**spent * (2**effort - 1), 2 ** (spent + effort))
    assert {(int(h), int(k)) for h, k in zip(host, size, strict=True)} == {(h, k) for h in range(4) for k in range(2)}
    for h, k in ((0, 0), (2, 1)):
        own = left[(host == h) & (size == k)]
        np.testing.assert_array_equal(own, np.arange(own[0], 1, -1))  # every epoch until it is decided


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


@pytest.mark.parametrize(
    ("price", "compute_price", "worth", "ops"),
    [
        (0.0, 1e-9, 1e3, [Op.GERMINATE, Op.ADVANCE, Op.ADVANCE, Op.FOSSILIZE]),
        (1e3, 1e-9, 1e3, [Op.GERMINATE, Op.ADVANCE, Op.PRUNE]),
        (0.0, 1.0, -1.0, [Op.GERMINATE, Op.ADVANCE, Op.PRUNE]),
    ],
)
def test_the_teacher_demonstrates_what_it_expects_to_pay(
    config: Config, monkeypatch: pytest.MonkeyPatch, price: float, compute_price: float, worth: float, ops: list[Op]
) -> None:
    """With room for one column, all episodes try the widest; it joins in the end, or is given up there, or half way."""
    monkeypatch.setattr(teacher, "fit_judgement", lambda survey, jobs, prune: judging(100.0, worth))
    prices = {"points_per_doubling": price, "points_per_compute_doubling": compute_price}
    free = replace(config.env, column_slots=1, **prices)
    episodes = demonstrate(replace(config, env=free), 2)
    assert [e.task_id for e in episodes].count("moons") == 16
    assert len({e.seed for e in episodes}) == len(episodes) == 32
    for episode in episodes:
        acted = np.flatnonzero(episode.actions[:, 0])
        if worth < 0 or price:
            assert episode.actions[acted, 0].tolist() == ops
        else:  # a column that makes the model worse does not join for nothing either
            assert episode.actions[acted, 0].tolist() in (ops, [Op.GERMINATE, Op.ADVANCE, Op.PRUNE])
        assert episode.actions[acted[0], 2] == blueprint_index("column_quad")
        assert acted[0] == LOOK
        assert acted[2] == (-(-len(episode) // 2) if worth < 0 else len(episode) - 2)


@pytest.mark.parametrize(
    ("limits", "tried"), [({"column_slots": 1}, "column_quad"), ({"budget_ratio": 4.0}, "column_double")]
)
def test_where_there_is_no_room_for_both_columns_the_larger_that_fits_is_tried(
    config: Config, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], tried: str
) -> None:
    monkeypatch.setattr(teacher, "fit_judgement", lambda survey, jobs, prune: judging(-9.0, -1.0))
    free = replace(config.env, points_per_doubling=1.0, points_per_compute_doubling=0.0, **limits)
    for episode in demonstrate(replace(config, env=free), 2):
        begun = episode.actions[episode.actions[:, 0] == Op.GERMINATE, 2]
        assert begun.tolist() == [blueprint_index(tried)]


@pytest.mark.parametrize(("compute_price", "start"), [(0.0, 0), (1e-9, LOOK)])
def test_of_two_columns_the_better_one_joins_first(
    config: Config, monkeypatch: pytest.MonkeyPatch, compute_price: float, start: int
) -> None:
    """And where compute is free, both start at once, although nothing is expected of them."""
    expected = 100.0 if compute_price else -9.0
    monkeypatch.setattr(teacher, "fit_judgement", lambda survey, jobs, prune: judging(expected, expected))
    free = replace(config.env, points_per_doubling=0.0, points_per_compute_doubling=compute_price, column_slots=2)
    quad, double = blueprint_index("column_quad"), blueprint_index("column_double")
    joined, both = [], 0
    for episode in demonstrate(replace(config, env=free), 2):
        op, slot, blueprint = episode.actions[:, :3].T
        begun = np.flatnonzero(op == Op.GERMINATE)
        assert begun.tolist() == [start, start + BETWEEN]
        assert blueprint[begun].tolist() == [quad, double]
        end = len(episode) - LEFT
        reader = ObservationReader(seed_spaces(free.total_slots, free.profile))
        worth = worth_now(reader, episode.obs[[end]])[0, slot[begun]]
        if worth.max() >= MARGIN:
            assert op[end] == Op.ADVANCE
            assert slot[end] == slot[begun][worth.argmax()]
            joined.append(blueprint[begun][worth.argmax()])
            other = worth_now(reader, episode.obs[[end + 1]])[0, slot[begun][1 - worth.argmax()]]
            assert op[end + 1] == (Op.ADVANCE if other >= MARGIN else Op.FOSSILIZE)
            both += int(op[end + 1] == Op.ADVANCE)
        else:
            assert op[end] == Op.PRUNE
    assert {quad, double} == set(joined)
    assert 0 < both < len(joined)


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
