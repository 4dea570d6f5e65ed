"""Generators of mlbench, compared with scikit-learn's, with published Bayes errors and with geometry; signals by the
MNIST-1D recipe: each stage, and the known difficulty for linear models."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from actors.env.tasks import make_task
from actors.env.tasks.families import signals
from actors.env.tasks.families.mlbench import DIMENSIONS, PROBLEMS

Points = NDArray[np.float64]
ROWS = 20_000


def drawn(name: str, n: int = ROWS) -> tuple[Points, NDArray[np.int64]]:
    x, y = PROBLEMS[name][1](np.random.default_rng(5), n)
    assert set(np.unique(y)) == set(range(PROBLEMS[name][0]))
    return x, y


def test_class_frequencies_are_as_defined() -> None:
    shares = {"cassini": (2, 2, 1), "cuboids": (2, 2, 2, 1), "smiley": (2, 2, 3, 5)}
    for name, (classes, _, _) in PROBLEMS.items():
        wanted = np.array(shares.get(name, (1,) * classes))
        np.testing.assert_allclose(np.bincount(drawn(name)[1]) / ROWS, wanted / wanted.sum(), atol=0.015)


@pytest.mark.parametrize("name", ["friedman2", "friedman3"])
def test_friedmans_functions_equal_scikit_learns(name: str) -> None:
    """A forest trained on scikit-learn's quartiles is as accurate on ours."""
    noise = {"friedman2": 125.0, "friedman3": 0.1}[name]
    theirs, value = getattr(datasets, f"make_{name}")(ROWS, noise=noise, random_state=1)
    classes = np.digitize(value, np.quantile(value, (0.25, 0.5, 0.75)))
    ours, y = drawn(name)
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), rtol=0.03)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.03)
    forest = RandomForestClassifier(50, min_samples_leaf=5, random_state=0, n_jobs=1).fit(theirs[:8000], classes[:8000])
    assert forest.score(ours, y) == pytest.approx(forest.score(theirs[8000:], classes[8000:]), abs=0.01)


@pytest.mark.parametrize(("name", "error"), [("twonorm", 0.023), ("threenorm", 0.105), ("waveform", 0.14)])
def test_bayes_errors_are_as_published(name: str, error: float) -> None:
    """Breiman, Bias, variance and arcing classifiers (1996): 2.3% and 10.5%; Breiman et al. (1984): 14%."""
    x, y = drawn(name)
    a = 2 / np.sqrt(DIMENSIONS)
    if name == "waveform":
        densities = _waveform_densities(x)
    else:
        signs = np.resize([1, -1], DIMENSIONS)
        one, other = (_density(x, sign * a * np.ones(DIMENSIONS)) for sign in (1, -1))
        densities = [one, other] if name == "twonorm" else [(one + other) / 2, _density(x, a * signs)]
    assert (np.argmax(densities, 0) != y).mean() == pytest.approx(error, abs=0.01)


def _density(x: Points, mean: Points, variance: float = 1.0) -> NDArray[np.float64]:
    return np.asarray(multivariate_normal(mean, variance).pdf(x))


def _waveform_densities(x: Points) -> list[NDArray[np.float64]]:
    """Integrate over the share of each wave numerically."""
    places = np.arange(1, 22)
    a, b, c = (np.maximum(6.0 - np.abs(places - middle), 0.0) for middle in (11, 15, 7))
    shares = (np.arange(50) + 0.5) / 50
    pairs = ((a, b), (a, c), (b, c))
    return [np.sum([np.exp(-0.5 * ((x - u * p - (1 - u) * q) ** 2).sum(1)) for u in shares], 0) for p, q in pairs]


def test_ringnorm_has_the_wider_gaussian_as_a_ring() -> None:
    x, y = drawn("ringnorm")
    densities = [_density(x, np.zeros(DIMENSIONS), 4.0), _density(x, np.full(DIMENSIONS, 1 / np.sqrt(DIMENSIONS)))]
    assert (np.argmax(densities, 0) != y).mean() < 0.02
    assert x[y == 0].std() == pytest.approx(2.0, abs=0.02)


def test_shapes_are_at_their_places() -> None:
    x, y = drawn("cassini")
    low, high, disc = (x[y == k] for k in range(3))
    assert np.hypot(*disc.T).max() <= 0.6
    assert low[:, 1].max() < -0.4 < 0.4 < high[:, 1].min()
    for points, center in ((low, -1.1), (high, 1.1)):  # within the convex oval or the one with a waist
        distances = [np.hypot(points[:, 0] - f, points[:, 1] - center) for f in (-0.97, 0.97)]
        wider = [np.hypot(points[:, 0] - f, points[:, 1] - center) for f in (-0.8044, 0.8044)]
        assert ((distances[0] * distances[1] <= 1.001) | (wider[0] * wider[1] <= 1.294 * 1.001)).all()
    x, y = drawn("cuboids")
    assert ((x >= 0.4) & (x <= 0.6))[y == 3].all()
    corners = drawn("simplex")
    middle = np.array([corners[0][corners[1] == k].mean(0) for k in range(4)])
    edges = np.linalg.norm(middle[:, None] - middle, axis=-1)[~np.eye(4, dtype=bool)]
    np.testing.assert_allclose(edges, 1.0, atol=0.02)


def test_the_quartiles_of_peak_depend_on_the_radius_only() -> None:
    x, y = drawn("peak")
    radius = np.linalg.norm(x, axis=1)
    order = np.argsort(-radius)
    assert (np.diff(y[order]) >= 0).all()
    assert radius.max() <= 3.0
    np.testing.assert_allclose(np.histogram(radius, 6, (0, 3))[0] / ROWS, 1 / 6, atol=0.01)


NOISELESS = {"CORRELATED_NOISE": 0.0, "WHITE_NOISE": 0.0, "SHEAR": 0.0, "SCALE": 0.0}


def signals_with(
    monkeypatch: pytest.MonkeyPatch, y: np.ndarray, seed: int = 0, **settings: float | tuple[int, int]
) -> np.ndarray:
    for name, value in settings.items():
        monkeypatch.setattr(signals, name, value)
    return signals.signals_of(y, np.random.default_rng(seed))


def test_padding_stretching_and_sampling_equal_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, shift, scale and shear a signal is its padded template, stretched and sampled."""
    y = np.arange(10).repeat(5)
    got = signals_with(monkeypatch, y, MAX_SHIFT=1, **NOISELESS)
    paddings = np.random.default_rng(0).integers(36, 61, len(y))  # the first thing drawn
    for n, (label, padding) in enumerate(zip(y, paddings, strict=True)):
        template = signals.centered_templates()[label]
        # The template falls to the padding's 0 on a straight line, as between all points.
        padded = np.concatenate([template, np.zeros(padding)])
        stretched = np.interp(np.linspace(0, 1, 72), np.linspace(0, 1, len(padded)), padded)
        expected = np.interp(np.linspace(0, 1, 40), np.linspace(0, 1, 72), stretched)
        np.testing.assert_allclose(got[n], expected, atol=1e-12)


def test_scale_shear_and_noise_have_the_sizes_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.zeros(4000, dtype=np.int64)
    still = {**NOISELESS, "MAX_SHIFT": 1, "PADDING": (36, 36)}
    plain = signals_with(monkeypatch, y, **still)
    scales = signals_with(monkeypatch, y, **still | {"SCALE": 0.4})[:, 0] / plain[:, 0]
    assert (scales.min(), scales.max()) == (pytest.approx(0.8, abs=2e-3), pytest.approx(1.2, abs=2e-3))
    slopes = signals_with(monkeypatch, y, **still | {"SHEAR": 0.75}) - plain
    np.testing.assert_allclose(np.diff(slopes, n=2), 0, atol=1e-12)
    assert np.abs(slopes[:, 0]).max() == pytest.approx(0.75 / 4, abs=2e-3)
    silent = slice(20, 40)
    noise = signals_with(monkeypatch, y, **still | {"CORRELATED_NOISE": 0.25})
    np.testing.assert_array_equal(noise[:, :5], plain[:, :5])  # the template itself stays clean
    correlation = np.mean(noise[:, 20:39] * noise[:, 21:40]) / np.mean(noise[:, silent] ** 2)
    assert correlation > 0.6
    white = signals_with(monkeypatch, y, **still | {"WHITE_NOISE": 0.02}) - plain
    assert white[:, [0, 39]].std() == pytest.approx(0.02, abs=5e-4)  # the ends are sampled, not interpolated
    assert abs(np.mean(white[:, :-1] * white[:, 1:])) < 0.35 * 0.02**2


def test_signals_flat_has_the_rows_of_signals() -> None:
    wide, flat = (make_task(name, np.random.default_rng(3)) for name in ("signals", "signals_flat"))
    assert (wide.shape, flat.shape) == ((1, 40), (40,))
    np.testing.assert_array_equal(wide.train.x[:, 0], flat.train.x)
    np.testing.assert_array_equal(wide.test.y, flat.test.y)


def test_linear_models_fail_on_signals() -> None:
    """The paper reports 32% for logistic regression; chance is 10%."""
    made = make_task("signals_flat", np.random.default_rng(0))
    model = LogisticRegression(C=0.1, max_iter=200).fit(made.train.x, made.train.y)
    assert 0.15 < model.score(made.test.x, made.test.y) < 0.45
