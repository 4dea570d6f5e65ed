"""Periodic patterns, held out: wave forms in one dimension, gratings in two."""

from __future__ import annotations

import numpy as np

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits

SIZES = Sizes(1024, 1024, 1024)
FORMS = ("sine", "square", "sawtooth", "triangle")


def wave_forms(rng: np.random.Generator, length: int = 40) -> Task:
    """The form of a wave of random frequency, phase and height."""
    noise = rng.uniform(0.2, 0.35)

    def draw(n: int) -> Rows:
        y = rng.integers(0, len(FORMS), n)
        cycles, start = rng.uniform(1.5, 5.0, (n, 1)), rng.uniform(size=(n, 1))
        phase = (cycles * np.linspace(0, 1, length) + start) % 1.0
        saw = 2 * phase - 1
        forms = np.stack([np.sin(2 * np.pi * phase), np.sign(saw), saw, 2 * np.abs(saw) - 1])
        x = forms[y, np.arange(n)] * rng.uniform(0.7, 1.3, (n, 1)) + noise * rng.standard_normal((n, length))
        return x[:, None], y

    return Task("wave_forms", len(FORMS), *draw_splits(draw, SIZES), kind="sequence")


def gratings(rng: np.random.Generator, side: int = 10, orientations: int = 6) -> Task:
    """The orientation of a noisy grating of random frequency and phase."""
    noise, tilt = rng.uniform(0.8, 1.2), rng.uniform(0.0, np.pi)
    row, column = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side), indexing="ij")

    def draw(n: int) -> Rows:
        y = rng.integers(0, orientations, n)
        angle = (tilt + np.pi * y / orientations)[:, None, None]
        cycles, phase = rng.uniform(1.0, 2.0, (n, 1, 1)), rng.uniform(0.0, 2 * np.pi, (n, 1, 1))
        along = np.cos(angle) * column + np.sin(angle) * row
        x = np.sin(np.pi * cycles * along + phase) + noise * rng.standard_normal((n, side, side))
        return x[:, None], y

    return Task("gratings", orientations, *draw_splits(draw, SIZES), kind="image")


FAMILIES = (
    TaskFamily("wave_forms", "heldout", "sequence", "sine, square, sawtooth or triangle", wave_forms, SIZES),
    TaskFamily("gratings", "heldout", "image", "the orientation of a noisy grating", gratings, SIZES),
)
