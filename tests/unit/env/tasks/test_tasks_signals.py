"""Signals: the flat family has the same rows, and linear models fail on them as the paper of MNIST-1D reports."""

from __future__ import annotations

import numpy as np

from actors.env.tasks import make_task


def test_signals_flat_has_the_rows_of_signals() -> None:
    wide, flat = (make_task(name, np.random.default_rng(3)) for name in ("signals", "signals_flat"))
    assert (wide.shape, flat.shape) == ((1, 40), (40,))
    np.testing.assert_array_equal(wide.train.x[:, 0], flat.train.x)
    np.testing.assert_array_equal(wide.test.y, flat.test.y)


def test_linear_models_fail_on_signals() -> None:
    """The paper reports 32% for logistic regression; chance is 10%."""
    from sklearn.linear_model import LogisticRegression

    made = make_task("signals_flat", np.random.default_rng(0))
    model = LogisticRegression(C=0.1, max_iter=200).fit(made.train.x, made.train.y)
    assert 0.15 < model.score(made.test.x, made.test.y) < 0.45
