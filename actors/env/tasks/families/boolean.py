"""Problems over bits and signs, all held out: parity, majority, and the exclusive or of two hidden directions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits, split_rows, standardized

Labels = Callable[[NDArray[np.int64]], NDArray[np.integer]]  # bits [n, B] -> class [n]
SIZES = Sizes(1024, 1024, 1024)


def parity(rng: np.random.Generator, bits: int = 14, relevant: int = 4) -> Task:
    """Parity of a few bits, at hidden positions among distractors."""
    chosen = rng.permutation(bits)[:relevant]
    return over_bits("parity", bits, lambda x: x[:, chosen].sum(1) % 2, rng)


def majority(rng: np.random.Generator, bits: int = 15, relevant: int = 9) -> Task:
    """Majority of bits at hidden positions: a linear threshold."""
    chosen = rng.permutation(bits)[:relevant]
    return over_bits("majority", bits, lambda x: x[:, chosen].sum(1) // (relevant // 2 + 1), rng)


def over_bits(name: str, bits: int, label: Labels, rng: np.random.Generator) -> Task:
    """Draw bit vectors without replacement: there are so few that separate draws would share rows."""
    codes = rng.permutation(2**bits)[: sum(SIZES)]
    x = (codes[:, None] >> np.arange(bits)) & 1
    return Task(name, 2, *standardized(*split_rows(x.astype(np.float64), label(x), SIZES)))


def xor(rng: np.random.Generator, features: int = 20) -> Task:
    """Whether the projections on two hidden directions of a Gaussian have the same sign."""
    directions = np.linalg.qr(rng.standard_normal((features, 2)))[0]

    def draw(n: int) -> Rows:
        x = rng.standard_normal((n, features))
        return x, ((x @ directions).prod(1) > 0).astype(np.int64)

    return Task("xor", 2, *draw_splits(draw, SIZES))


FAMILIES = (
    TaskFamily("parity", "heldout", "vector", "parity of 4 of 14 bits", parity, SIZES),
    TaskFamily("majority", "heldout", "vector", "majority of 9 of 15 bits", majority, SIZES),
    TaskFamily("xor", "heldout", "vector", "do two hidden directions in 20 agree in sign", xor, SIZES),
)
