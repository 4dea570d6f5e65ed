"""Signals by the MNIST-1D recipe: each stage, and the known difficulty for linear models."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from actors.env.tasks import make_task
from actors.env.tasks.families import signals

NOISELESS = {"CORRELATED_NOISE": 0.0, "WHITE_NOISE": 0.0, "SHEAR": 0.0, "SCALE": 0.0}


def drawn(
    monkeypatch: pytest.MonkeyPatch, y: np.ndarray, seed: int = 0, **settings: float | tuple[int, int]
) -> np.ndarray:
    for name, value in settings.items():
        monkeypatch.setattr(signals, name, value)
    return signals.signals_of(y, np.random.default_rng(seed))


def test_padding_stretching_and_sampling_equal_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, shift, scale and shear a signal is its padded template, stretched and sampled."""
    y = np.arange(10).repeat(5)
    got = drawn(monkeypatch, y, MAX_SHIFT=1, **NOISELESS)
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
    plain = drawn(monkeypatch, y, **still)
    scales = drawn(monkeypatch, y, **still | {"SCALE": 0.4})[:, 0] / plain[:, 0]
    assert (scales.min(), scales.max()) == (pytest.approx(0.8, abs=2e-3), pytest.approx(1.2, abs=2e-3))
    slopes = drawn(monkeypatch, y, **still | {"SHEAR": 0.75}) - plain
    np.testing.assert_allclose(np.diff(slopes, n=2), 0, atol=1e-12)
    assert np.abs(slopes[:, 0]).max() == pytest.approx(0.75 / 4, abs=2e-3)
    silent = slice(20, 40)
    noise = drawn(monkeypatch, y, **still | {"CORRELATED_NOISE": 0.25})
    np.testing.assert_array_equal(noise[:, :5], plain[:, :5])  # the template itself stays clean
    correlation = np.mean(noise[:, 20:39] * noise[:, 21:40]) / np.mean(noise[:, silent] ** 2)
    assert correlation > 0.6
    white = drawn(monkeypatch, y, **still | {"WHITE_NOISE": 0.02}) - plain
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
