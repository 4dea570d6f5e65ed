"""The norm of gradients, and AdamW (Loshchilov and Hutter, 2019), over all parameters in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.jit.decorators import Kernel
from actors.policy.gradients.sizes import Parameters, floats
from learner.kernels.cache import cache_dir

Array = NDArray[Any]


def _squares(like: Array, grads: Array, counts: Array, results: Array) -> None:
    """Write the sum of squares of each of the gradients at addresses `grads [P]` to `results [P]`."""
    for k in range(grads.size):
        own, total = floats(Parameters(grads, counts), k), np.float32(0.0)
        for j in range(own.size):
            total += own[j] * own[j]
        results[k] = total


def _scale(like: Array, grads: Array, counts: Array, factor: float) -> None:
    """Multiply all gradients."""
    number = np.float32(factor)
    for k in range(grads.size):
        own = floats(Parameters(grads, counts), k)
        for j in range(own.size):
            own[j] *= number


def _adamw(
    like: Array,
    counts: Array,  # int64 [P]
    parameters: Array,  # int64 [P] addresses, as are the next four
    grads: Array,
    means: Array,
    squares: Array,
    steps: Array,  # of one number each
    decay: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Take one step."""
    ones = np.ones_like(counts)
    for k in range(counts.size):
        p, g, m, v = (
            floats(Parameters(parameters, counts), k),
            floats(Parameters(grads, counts), k),
            floats(Parameters(means, counts), k),
            floats(Parameters(squares, counts), k),
        )
        step = floats(Parameters(steps, ones), k)
        step[0] += np.float32(1.0)
        t = float(step[0])
        size, deviation = np.float32(lr / (1.0 - beta1**t)), np.float32(1.0 / np.sqrt(1.0 - beta2**t))
        kept, b1, b2, least = (
            np.float32(1.0 - lr * decay),
            np.float32(1.0 - beta1),
            np.float32(1.0 - beta2),
            np.float32(eps),
        )
        for j in range(p.size):
            m[j] += (g[j] - m[j]) * b1
            v[j] += (g[j] * g[j] - v[j]) * b2
            p[j] = p[j] * kept - size * m[j] / (np.sqrt(v[j]) * deviation + least)


squares = Kernel(_squares, cache_dir)
scale = Kernel(_scale, cache_dir)
adamw = Kernel(_adamw, cache_dir)
