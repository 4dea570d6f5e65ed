"""Every task family: disjoint splits, seeding, sizes, standardization, and which families are held out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.tree import DecisionTreeClassifier

from actors.config import ConfigError, EnvConfig
from actors.env.env import SeedTrainingEnv
from actors.env.episode.settings import draw_settings
from actors.env.tasks import Split, Task, TaskFamily, families, find_family, make_task, register, registry
from actors.env.tasks.families.bundled import BUNDLES, fixed_order, load
from actors.env.tasks.measured import MEASURED, Gain, measurements
from actors.env.tasks.task import DIMENSIONS, with_label_noise
from actors.rng import Purpose, stream

FIXED = {*BUNDLES, "digits_image"}  # the same rows for every seed
NAMES = [family.name for family in families() if family.from_files is None]


@cache
def task(name: str, seed: int = 0) -> Task:
    return make_task(name, stream(0, seed, Purpose.TASK_DATA))


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_disjoint_and_complete(name: str) -> None:
    family, made = find_family(name), task(name)
    rows = [{r.tobytes() for r in np.ascontiguousarray(s.x)} for s in (made.train, made.val, made.test)]
    assert not any(a & b for a, b in combinations(rows, 2))
    assert (made.task_id, made.kind, made.sizes) == (name, family.kind, family.sizes)
    assert made.train.x.ndim == DIMENSIONS[family.kind]
    for split in (made.train, made.val, made.test):
        assert split.x.dtype == np.float32
        assert np.isfinite(split.x).all()
        assert set(np.unique(split.y)) == set(range(made.num_classes))
    assert len(made.val) >= (200 if name in FIXED - {"wine"} else 44 if name == "wine" else 500)
    if name in BUNDLES:  # all rows are used
        assert sum(made.sizes) == {"digits": 1797, "wine": 178, "breast_cancer": 569, "diabetes": 442}[name]


@pytest.mark.parametrize("name", NAMES)
def test_features_are_standardized_by_the_training_rows_only(name: str) -> None:
    made = task(name)
    axes = (0,) if made.kind == "vector" else tuple(n for n in range(made.train.x.ndim) if n != 1)
    x = made.train.x.astype(np.float64)
    if name == "signals_flat":  # standardized as one channel, before flattening
        x, axes = x.reshape(-1, 1), (0,)
    varying = x.std(axes) > 1e-6
    np.testing.assert_allclose(x.mean(axes), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axes)[varying], 1, atol=1e-4)
    whole = np.concatenate([made.train.x, made.val.x, made.test.x]).astype(np.float64)
    assert np.abs(whole.mean(0)).max() > 1e-4  # statistics of all rows would have made this 0


@pytest.mark.parametrize("name", NAMES)
def test_data_depend_on_the_generator_only(name: str) -> None:
    np.random.seed(1)  # noqa: NPY002 (the global generator must not matter)
    once = make_task(name, stream(0, 1, Purpose.TASK_DATA))
    np.random.seed(2)  # noqa: NPY002
    again, other = make_task(name, stream(0, 1, Purpose.TASK_DATA)), task(name, 2)
    for a, b in zip((once.train, once.val, once.test), (again.train, again.val, again.test), strict=True):
        np.testing.assert_array_equal(a.x, b.x)
        np.testing.assert_array_equal(a.y, b.y)
    # Bundled data sets have fixed splits: no seed trains on another's test rows.
    assert (name in FIXED) == np.array_equal(once.train.x, other.train.x)
    # A fleet pads to the shapes of one draw.
    assert (once.shape, once.num_classes) == (other.shape, other.num_classes)


@pytest.mark.parametrize(
    ("name", "digest"), [("digits", "ae6f2ce8c031cc36"), ("wine", "9f821803111acd06"), ("spirals", "875d9971ed291990")]
)
def test_draws_of_the_default_tasks_are_unchanged(name: str, digest: str) -> None:
    """Bit for bit, so that results of earlier versions stay comparable."""
    made, sha = task(name, 7), hashlib.sha256()
    for split in (made.train, made.val, made.test):
        sha.update(split.x.tobytes())
        sha.update(split.y.tobytes())
    assert sha.hexdigest()[:16] == digest


def test_enough_families_and_no_name_in_both_splits() -> None:
    train, heldout = families("train"), families("heldout")
    assert len({f.name for f in (*train, *heldout)}) == len(train) + len(heldout) == len(families())
    assert {f.kind for f in train} == {f.kind for f in heldout} == set(DIMENSIONS)
    assert set(EnvConfig().tasks) <= {f.name for f in train}


def test_hosts_have_every_width_of_their_familys_range() -> None:
    """Log-uniformly: as many below the geometric mean as above it."""
    for name, low, high in (("spirals", 2, 32), ("signals", 2, 16), ("digits_image", 2, 16)):
        config = EnvConfig(tasks=(name,))
        drawn = [draw_settings(config, name, 0, seed).host_width for seed in range(600)]
        assert set(drawn) == set(range(low, high + 1))
        below = sum(width < (low * (high + 1)) ** 0.5 for width in drawn) / 600
        assert below == pytest.approx(0.5, abs=0.07)


def test_a_familys_data_do_not_change_with_the_width() -> None:
    small, large = (SeedTrainingEnv(EnvConfig(host_width=width)) for width in (2, 32))
    for env in (small, large):
        env.reset(seed=4)
    np.testing.assert_array_equal(small.episode.task.train.x, large.episode.task.train.x)
    assert (small.episode.host.width, large.episode.host.width) == (2, 32)


def test_sizes_and_prices_are_drawn_from_the_ranges() -> None:
    config = EnvConfig(horizon_epochs=(15, 40), inner_steps=(8, 32))
    drawn = [draw_settings(config, "moons", 0, seed) for seed in range(400)]
    assert {d.horizon_epochs for d in drawn} == set(range(15, 41))
    assert {d.inner_steps for d in drawn} == {8, 16, 32}
    prices = np.array([d.prices for d in drawn])
    free = prices[:, 1] == 0
    assert free.mean() == pytest.approx(0.25, abs=0.06)
    shares = prices[~free, 1] / prices[~free, 0]  # c relative to p
    for found, low, high in ((prices[:, 0], 0.25, 8.0), (shares, 1 / 32, 1.0)):
        counts, _ = np.histogram(np.log2(found), np.linspace(np.log2(low), np.log2(high), 6))
        assert counts.sum() == len(found)  # within the range, and log-uniform in it
        assert counts / len(found) == pytest.approx([0.2] * 5, abs=0.07)
    assert abs(np.corrcoef(np.log2(prices[~free, 0]), np.log2(shares))[0, 1]) < 0.15
    sizes = {"horizon_epochs": 9, "inner_steps": 5, "host_width": 7}
    fixed = EnvConfig(points_per_doubling=0.0, points_per_compute_doubling=3.0, **sizes)
    assert draw_settings(fixed, "moons", 0, 1) == (7, 9, 5, (0.0, 3.0), 5e-3, False)


def test_learning_rates_are_drawn_and_fall_as_pytorchs_cosine() -> None:
    config = EnvConfig(host_lr=(1e-3, 4e-3), lr_decay=0.5, horizon_epochs=(5, 9))
    drawn = [draw_settings(config, "moons", 0, seed) for seed in range(400)]
    peaks = np.log2([d.peak_lr for d in drawn])
    counts, _ = np.histogram(peaks, np.log2([1e-3, 2e-3, 4e-3]))
    assert counts.sum() == 400
    assert counts[0] == pytest.approx(200, abs=35)
    assert sum(d.decays for d in drawn) == pytest.approx(200, abs=35)
    for d in drawn[:20]:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=d.peak_lr)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, d.horizon_epochs)
        for epoch in range(d.horizon_epochs):
            assert d.lr(epoch) == pytest.approx(falling.get_last_lr()[0] if d.decays else d.peak_lr)
            optimizer.step()
            falling.step()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"horizon_epochs": (40, 15)}, "write the smaller number of a range first"),
        ({"inner_steps": (0, 8)}, "at least one minibatch"),
        ({"points_per_doubling": (0.0, 2.0)}, "nor a range start at 0"),
        ({"points_per_doubling": -1.0}, "cannot be negative"),
        ({"host_width": 0}, "at least one unit"),
        ({"slots": 7}, "at most 8 slots of both kinds"),
        ({"column_slots": -1}, "cannot be negative"),
        ({"download": True}, "env.download needs env.data_dir"),
        ({"device": "cpu", "cuda_graph": True}, "env.cuda_graph needs a CUDA device"),
        ({"hidden_features": ("prices",)}, "env.hidden_features has 'prices': choose from contributions, .*price"),
        *(({"drop_features": share}, "env.drop_features") for share in (-0.1, 1.0, float("nan"))),
        ({"time_limit": "truncated", "reward": "sparse"}, "which truncated episodes do not reach"),
        ({"shaping_gamma": 0.0}, "the learner's"),
    ],
)
def test_invalid_settings_are_rejected_with_the_reason(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EnvConfig(**settings)


def test_no_held_out_family_comes_from_a_function_that_also_makes_training_families() -> None:
    def maker(family: TaskFamily) -> str:
        made = family.from_files or family.factory
        name = getattr(getattr(made, "func", made), "__qualname__", "")
        return f"bundled {family.name}" if name == "_bundled" else name

    train, heldout = ({maker(family) for family in families(split)} for split in ("train", "heldout"))
    assert not train & heldout


def test_every_generated_family_is_measured_and_growth_pays_on_some_only() -> None:
    measured = measurements()
    assert set(measured) == {f.name for f in families() if f.factory is not None}
    assert {f.kind for f in families() if f.name in measured} == {"vector", "sequence", "image"}
    small, large = (([row[i].column.priced.verdict for row in measured.values()]) for i in (0, 2))
    assert small.count("pays") > 20 > 5 > large.count("pays")
    assert large.count("hurts") > 20
    assert any(measured[f.name][0].column.priced.verdict == "pays" for f in families("heldout") if f.kind == "vector")


def test_the_measurements_have_the_settings_of_the_environment_and_verdicts_an_interval_without_zero() -> None:
    settings = json.loads(MEASURED.read_text())["settings"]
    names = ("horizon_epochs", "inner_steps", "batch_size", "host_lr", "slots", "column_slots")
    assert [settings[name] for name in names] == [getattr(EnvConfig(), name) for name in names]
    gains = (Gain(1.0, 0.1, 2.0), Gain(1.0, -0.1, 2.0), Gain(-1.0, -2.0, -0.1))
    assert [gain.verdict for gain in gains] == ["pays", "even", "hurts"]


def test_label_noise_affects_training_labels_only() -> None:
    clean = task("spirals")
    noisy = with_label_noise(clean, "noisy", 0.25, np.random.default_rng(0))
    assert (noisy.train.y != clean.train.y).sum() == round(0.25 * len(clean.train))
    assert set(np.unique(noisy.train.y)) == set(range(3))
    assert noisy.val is clean.val
    assert noisy.test is clean.test


def test_parity_follows_a_hidden_rule() -> None:
    """Only one subset of 4 bits explains every label."""
    made = task("parity", 5)
    rows = np.concatenate([made.train.x, made.val.x, made.test.x]) > 0
    labels = np.concatenate([made.train.y, made.val.y, made.test.y])
    fits = [c for c in combinations(range(14), 4) if (rows[:, c].sum(1) % 2 == labels).all()]
    assert len(fits) == 1


def learnt(model: ClassifierMixin, name: str, seed: int = 0) -> float:
    made = task(name, seed)
    return float(model.fit(made.train.x, made.train.y).score(made.test.x, made.test.y))


def test_linear_models_and_trees_learn_what_follows_their_rules_only() -> None:
    straight = LogisticRegression(C=100)
    assert min(learnt(straight, "linear"), learnt(straight, "majority")) > 0.95
    assert learnt(straight, "xor") < 0.6
    assert learnt(straight, "spirals") < 0.5
    assert learnt(DecisionTreeClassifier(random_state=0), "decision_tree") > 0.9


def test_quadrics_labels_are_those_of_a_quadric() -> None:
    squared = make_pipeline(PolynomialFeatures(2), LogisticRegression(max_iter=500))
    assert max(learnt(LogisticRegression(), "quadrics", seed) for seed in range(6)) < 0.65
    assert max(learnt(squared, "quadrics", seed) for seed in range(6)) > 0.9
    for seed in range(6):
        assert task("quadrics", seed).test.y.mean() == pytest.approx(0.5, abs=0.08)


def test_classes_are_balanced() -> None:
    assert np.bincount(task("friedman").test.y).min() > 0.2 * 1024
    for name in ("teacher_narrow", "teacher_wide", "teacher_deep"):
        made = task(name)
        assert np.bincount(made.test.y).min() > 0.6 * 1024 / made.num_classes


def test_a_family_can_be_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    own = dataclasses.replace(find_family("moons"), name="mine", split="heldout")
    register(own)
    assert own in families("heldout")
    assert make_task("mine", np.random.default_rng(0)).num_classes == 2
    with pytest.raises(ConfigError, match="named 'mine' already exists"):
        register(own)
    with pytest.raises(ConfigError, match="contains a colon"):
        register(dataclasses.replace(own, name="a:b"))


def rows(n: int = 4, shape: tuple[int, ...] = (3,)) -> Split:
    return Split(np.zeros((n, *shape), dtype=np.float32), np.arange(n) % 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "graph"}, "kind 'graph': use one of vector, sequence, image"),
        ({"num_classes": 1}, "has 1 classes: it needs at least 2"),
        ({"host_width": 0}, "host_width 0"),
        ({"val": rows(shape=(2,))}, r"val has rows of shape \(2,\), but train has \(3,\)"),
        ({"test": rows(0)}, "test is empty"),
        ({"train": Split(np.zeros((4, 3)), np.zeros(4, dtype=np.int64))}, "train.x is float64: make it float32"),
        ({"train": Split(rows().x, rows(3).y)}, "4 rows of x, but labels of shape"),
    ],
)
def test_an_invalid_task_is_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(Task("t", 2, rows(), rows(), rows()), **changes)


@pytest.mark.parametrize("name", BUNDLES)
def test_bundled_rows_are_those_of_scikit_learn(name: str) -> None:
    options = {"scaled": False} if name == "diabetes" else {}
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True, **options)
    mine_x, mine_y = load(name)
    order = fixed_order(len(y))
    np.testing.assert_array_equal(mine_x, x[order])
    terciles = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3])) if name == "diabetes" else y
    np.testing.assert_array_equal(mine_y, terciles[order])
