"""Comparing episodes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from actors.types.episode import BurnIn, Episode, RecurrentState

COMPUTED = ("log_probs", "values", "baseline_values", "bootstrap_value", "initial_state", "states")
"""What a forward pass computes, whose last bits depend on the number of its rows."""


def assert_alike(a: Episode, b: Episode) -> None:
    """Assert equality of every field but the id, exactly unless it is `COMPUTED`."""
    for name in (f.name for f in fields(a) if f.name != "episode_id"):
        x, y = getattr(a, name), getattr(b, name)
        if name not in COMPUTED:
            assert episodes_equal(x, y), name
            continue
        for own, other in zip(*(z if isinstance(z, RecurrentState) else (z,) for z in (x, y)), strict=True):
            assert np.shape(own) == np.shape(other), name
            scale = max(1.0, float(np.abs(other).max(initial=0.0)))
            assert np.allclose(own, other, atol=1e-6 * scale), name


def episodes_equal(x: object, y: object) -> bool:
    """Exact equality of every field, arrays compared by value, shape and dtype."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and bool(np.array_equal(x, y))
    if isinstance(x, RecurrentState) and isinstance(y, RecurrentState):
        return all(map(episodes_equal, x, y))
    if isinstance(x, Episode | BurnIn) and type(x) is type(y):
        return all(episodes_equal(getattr(x, f.name), getattr(y, f.name)) for f in fields(x))
    return x == y
