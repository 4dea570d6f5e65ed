"""The generators of mlbench, compared with scikit-learn's, with published Bayes errors and with geometry."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier

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
