"""The intervals of an evaluation, compared with closed forms, slow loops and simulated null hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from deploy.evaluation import statistics as st

Array = NDArray[np.float64]
REPEATS = 400
NULLS: dict[str, Callable[[Callable[..., Array]], Array]] = {
    "policies": lambda n: (n(5, 1, 1) + 3.0 * n(1, 8, 20) + 3.0 * n(5, 8, 20))[:, None],
    "families": lambda n: (0.5 * n(5, 1, 1) + 2.0 * n(1, 8, 1) + 3.0 * n(1, 8, 20) + 3.0 * n(5, 8, 20))[:, None],
    "policies, few episodes": lambda n: (2.0 * n(5, 1, 1) + 0.3 * n(1, 8, 1) + n(1, 8, 20) + n(5, 8, 20))[:, None],
    "a single family": lambda n: (n(5, 1, 1) + 1.5 * n(5, 1, 20) + n(1, 1, 20))[:, None],
    "both groups of policies": lambda n: st.differences(*(n(5, 1, 1) + n(5, 4, 10) for _ in range(2))),
}
"""What varies about a true mean of 0, `[P, Q, F, S]`, by standard normal numbers."""


@pytest.mark.parametrize("null", NULLS)
def test_intervals_cover_the_truth(null: str) -> None:
    rng = np.random.default_rng(1)
    found = [st.interval(NULLS[null](lambda *shape: rng.standard_normal(shape)), resamples=200) for _ in range(REPEATS)]
    covered = np.mean([i.low <= 0 <= i.high for i in found])
    assert 0.90 <= covered <= 0.97, covered


def test_the_interval_is_students_t_if_only_policies_vary() -> None:
    effects = np.array([0.3, -1.0, 0.5, 2.0, 0.7])
    x = np.broadcast_to(effects[:, None, None, None], (5, 1, 3, 4))
    own = st.spread(x)
    assert own.error == pytest.approx(effects.std(ddof=1) / 5**0.5)
    assert own.freedom == pytest.approx(4)
    low, high = scipy_stats.t.interval(0.95, 4, effects.mean(), effects.std(ddof=1) / 5**0.5)
    found = st.interval(x, resamples=4000)
    assert found.mean == pytest.approx(effects.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.35)  # a percentile interval is not symmetric


def test_differences_pair_every_policy_with_every_other_or_with_its_own() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 2, 4)), rng.standard_normal((2, 2, 4))
    slow = [a[p, f, s] - b[q, f, s] for p, q, f, s in product(range(3), range(2), range(2), range(4))]
    assert st.differences(a, b).ravel() == pytest.approx(slow)
    own = [0.0 for _ in product(range(3), range(2), range(4))]
    assert st.differences(a, a, same_policies=True).ravel() == pytest.approx(own)


def test_fraction_of_a_gap_that_is_closed() -> None:
    rng = np.random.default_rng(7)
    gap = 4.0 + rng.standard_normal((1, 1, 6, 20))
    gained = 0.5 * gap + 0.2 * rng.standard_normal((5, 1, 6, 20))
    found = st.share(gained, gap, resamples=500)
    assert found.mean == pytest.approx(gained.mean() / gap.mean())
    assert found.low < 0.5 < found.high
    assert st.share(gained, -gap) is None
    assert st.share(gained, gap - 4.0) is None  # a gap that may be none


def test_intervals_need_finite_rows() -> None:
    with pytest.raises(ValueError, match="finite"):
        st.interval(np.full((1, 1, 2, 2), np.nan))
    with pytest.raises(ValueError, match="two rows"):
        st.interval(np.zeros((1, 1, 1, 1)))
