"""Parameters as one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.blueprints.blueprint import Param


def draw_into(shapes: Mapping[str, Param], into: NDArray[Any], rng: np.random.Generator) -> None:
    """Draw parameters into the beginning of a vector, in the order of `shapes`."""
    start = 0
    for p in shapes.values():
        into[start : start + p.size] = p.draw(rng).ravel()
        start += p.size
