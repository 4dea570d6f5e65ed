"""Problems with many classes of very different frequencies: the common ones are learned at once, the others slowly."""

from __future__ import annotations

import numpy as np

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits

SIZES = Sizes(4096, 1024, 1024)
WIDTHS = (4, 64)  # narrower hosts learn nothing but the most frequent classes


def mixture(rng: np.random.Generator, classes: int = 48, clusters: int = 96, features: int = 8) -> Task:
    """Gaussian clusters, two to a class, whose frequencies follow Zipf's law; its exponent and the spread are drawn."""
    share = np.arange(1, clusters + 1) ** -rng.uniform(0.6, 1.1)
    means, spread = rng.standard_normal((clusters, features)), rng.uniform(0.35, 0.55)

    def draw(n: int) -> Rows:
        which = rng.choice(clusters, n, p=share / share.sum())
        return means[which] + spread * rng.standard_normal((n, features)), which % classes

    return Task("mixture", classes, *draw_splits(draw, SIZES))


def phrases(rng: np.random.Generator, symbols: int = 40, features: int = 6) -> Task:
    """The symbol that follows two others, each given as a random vector.

    Symbols follow Zipf's law. The next one depends on the last alone, on both by a random network, or on neither; how
    often each happens is drawn.
    """
    vectors = rng.standard_normal((symbols, features))
    share = np.arange(1, symbols + 1) ** -1.0
    share /= share.sum()
    after_last = rng.permutation(symbols)
    first, second = rng.standard_normal((2 * features, 24)), rng.standard_normal((24, symbols))
    of_last, of_both = rng.uniform(0.2, 0.4), rng.uniform(0.4, 0.6)

    def draw(n: int) -> Rows:
        given = rng.choice(symbols, (n, 2), p=share)
        x = vectors[given].reshape(n, -1)
        both = (np.tanh(x @ first) @ second).argmax(1)
        kind = rng.random(n)
        y = np.where(kind < of_last, after_last[given[:, 1]], rng.choice(symbols, n, p=share))
        return x + 0.1 * rng.standard_normal(x.shape), np.where(kind > 1.0 - of_both, both, y)

    return Task("phrases", symbols, *draw_splits(draw, SIZES))


FAMILIES = (
    TaskFamily(
        "mixture", "train", "vector", "48 classes of Gaussian clusters by Zipf's law", mixture, SIZES, None, WIDTHS
    ),
    TaskFamily("phrases", "train", "vector", "which of 40 symbols follows two others", phrases, SIZES, None, WIDTHS),
)
