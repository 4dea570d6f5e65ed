"""The exponential of kernels. `tests/property/env` compares what they compute with the reference."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from actors.kernels.vectors import PADDING, exponential, lanes, load, store

Array = NDArray[Any]


@numba.njit
def _exponentials(x: Array) -> Array:
    out = np.empty_like(x)
    for i in range(0, x.size, lanes(x)):
        store(out, i, exponential(load(x, i)))
    return out


def test_the_exponential_is_exact_to_two_units_in_the_last_place() -> None:
    x = np.linspace(-87, 88, 200_000).astype(np.float32)
    truth = np.exp(x.astype(np.float64))
    error = np.abs(_exponentials(x) - truth) / np.spacing(truth.astype(np.float32))
    assert error.max() <= 2.0


def test_the_exponential_saturates_and_propagates_nan() -> None:
    out = _exponentials(np.array([-1e30, -np.inf, np.nan, *[0.0] * (PADDING - 3)], dtype=np.float32))
    np.testing.assert_allclose(out[:4], [0.0, 0.0, np.nan, 1.0], rtol=0, atol=1e-37)
