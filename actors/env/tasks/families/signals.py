"""1-D signals by the MNIST-1D recipe (Greydanus and Kobak, arXiv 2011.14439), generated here.

A digit-like template of 12 points is padded with a random number of zeros, stretched to one length, scaled, shifted
around, its silent part filled with correlated noise, all of it with white noise, sheared, and sampled at 40 points. The
recipe and its settings are the paper's, the templates our own, so that scores are near the paper's and not the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Sizes, Split, Task, draw_splits

SIZES = Sizes(2048, 512, 1024)
LENGTH = 40
PADDING = (36, 60)  # zeros after the template
SCALE, SHEAR, MAX_SHIFT = 0.4, 0.75, 48
CORRELATED_NOISE, CORRELATION_LENGTH, WHITE_NOISE = 0.25, 2.0, 0.02

# A stroke of each digit's outline read from top to bottom: height over 12 points.
TEMPLATES: NDArray[np.float64] = np.array(
    [
        [5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5],
        [2, 4, 6, 7, 1, 1, 1, 1, 1, 1, 1, 1],
        [5, 6.5, 6, 4, 2, 1, 0.5, 0.5, 2, 5, 7, 7],
        [5, 6.5, 6.5, 5, 3, 2, 3, 5, 6.5, 6.5, 5, 3],
        [7, 6, 5, 4, 3, 3, 6, 7, 7, 3, 3, 3],
        [2, 2, 3, 7, 7, 5, 4, 3, 3, 5, 6, 4],
        [7, 5, 3, 2, 1.5, 1.5, 3, 5, 6, 5, 4, 2],
        [7, 7, 7, 6, 5, 4, 3, 2.5, 2, 1.5, 1, 1],
        [4, 6, 6, 4, 2.5, 2, 3, 5, 7, 7, 6, 4],
        [3, 5, 6, 6, 5, 3, 2, 2, 3, 4, 6, 7],
    ]
)


def centred_templates() -> NDArray[np.float64]:
    """[10, 12] with mean 0 and a largest height of 1."""
    middle = TEMPLATES - TEMPLATES.mean(1, keepdims=True)
    return np.asarray(middle / np.abs(middle).max(1, keepdims=True))


def signals_of(y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """One signal [n, 40] for each label."""
    from scipy.ndimage import gaussian_filter1d  # half a second that not every actor needs

    n, points = len(y), TEMPLATES.shape[1]
    full = points + PADDING[1]
    # Padding to p + points and stretching to `full` is sampling the padded template at a coarser step.
    step = (points + rng.integers(PADDING[0], PADDING[1] + 1, n) - 1) / (full - 1)
    at = np.arange(full)[None, :] * step[:, None]
    sounding = at < points
    clean = np.where(sounding, _sampled(np.pad(centred_templates(), ((0, 0), (0, 1)))[y], at), 0.0)
    clean *= 1.0 + SCALE * (rng.uniform(size=(n, 1)) - 0.5)
    shift = (np.arange(full)[None, :] - rng.integers(0, MAX_SHIFT, (n, 1))) % full
    clean, sounding = np.take_along_axis(clean, shift, 1), np.take_along_axis(sounding, shift, 1)
    correlated = gaussian_filter1d(CORRELATED_NOISE * rng.standard_normal((n, full)), CORRELATION_LENGTH, axis=1)
    noisy = np.where(sounding, clean, correlated) + WHITE_NOISE * rng.standard_normal((n, full))
    noisy -= SHEAR * (rng.uniform(size=(n, 1)) - 0.5) * np.linspace(-0.5, 0.5, full)
    return _sampled(noisy, np.broadcast_to(np.linspace(0, full - 1, LENGTH), (n, LENGTH)))


def _sampled(rows: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row [n, L] at the positions [n, M], between points on a straight line; the last point beyond the end."""
    last = rows.shape[1] - 1
    at = np.minimum(at, last)
    left = np.minimum(at.astype(np.int64), last - 1)
    a, b = np.take_along_axis(rows, left, 1), np.take_along_axis(rows, left + 1, 1)
    return np.asarray(a + (at - left) * (b - a))


def signals(rng: np.random.Generator) -> Task:
    def draw(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        y = rng.integers(0, len(TEMPLATES), n)
        return signals_of(y, rng)[:, None], y

    return Task("signals", len(TEMPLATES), 12, *draw_splits(draw, SIZES), kind="sequence")


def signals_flat(rng: np.random.Generator) -> Task:
    """The same signals as plain vectors, for a host that knows nothing of neighbours."""
    task = signals(rng)
    flat = [Split(s.x.reshape(len(s), -1), s.y) for s in (task.train, task.val, task.test)]
    train, val, test = flat
    return Task("signals_flat", task.num_classes, 8, train, val, test)


FAMILIES = (
    TaskFamily("signals", "train", "sequence", "MNIST-1D's recipe: ten shapes, shifted and noisy", signals, SIZES),
    TaskFamily("signals_flat", "train", "vector", "the same signals as plain vectors", signals_flat, SIZES),
)
