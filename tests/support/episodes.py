"""Comparing episodes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from actors.types.episode import BurnIn, Episode, RecurrentState


def episodes_equal(a: Episode, b: Episode) -> bool:
    """Exact equality of every field, arrays compared by value, shape and dtype."""

    def same(x: object, y: object) -> bool:
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            return x.dtype == y.dtype and x.shape == y.shape and bool(np.array_equal(x, y))
        if isinstance(x, Episode | RecurrentState | BurnIn) and type(x) is type(y):
            return all(same(getattr(x, f.name), getattr(y, f.name)) for f in fields(x))
        return x == y

    return same(a, b)
