"""Comparing episodes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from actors.types.episode import Episode, RecurrentState


def episodes_equal(a: Episode, b: Episode) -> bool:
    """Exact equality of every field, arrays compared by value, shape and dtype."""

    def same(x: object, y: object) -> bool:
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            return x.dtype == y.dtype and x.shape == y.shape and bool(np.array_equal(x, y))
        if isinstance(x, RecurrentState) and isinstance(y, RecurrentState):
            return all(map(same, x.arrays, y.arrays))
        return x == y

    return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(Episode))
