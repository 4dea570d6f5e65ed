"""Cross-entropy of logits `[classes, B]` with rows of data innermost, and its gradient."""

from __future__ import annotations

import math

from actors.kernels.decorators import Array
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.vectors import exponential, lanes, load, maximum, splat, store


@inner
def highest_and_sum(logits: Array, highest: Array, summed: Array) -> None:
    """Compute, for each row of data, the `highest [B]` of its logits [C, B], and the sum of exp(logit - highest)."""
    for i in range(0, logits.shape[1], lanes(logits)):
        top = load(logits[0], i)
        for c in range(1, logits.shape[0]):
            top = maximum(top, load(logits[c], i))
        mass = splat(logits.dtype.type(0))
        for c in range(logits.shape[0]):
            mass = mass + exponential(load(logits[c], i) - top)
        store(highest, i, top)
        store(summed, i, mass)


@inner
def log_losses(logits: Array, y: Array, highest: Array, summed: Array) -> float:
    """Return the sum of the cross-entropies of the rows of y, given the results of `highest_and_sum`."""
    result, product = 0.0, 1.0
    for i in range(y.size):
        # The sums lie between 1 and C: the product of eight cannot overflow, and a logarithm of it costs one of eight.
        product *= summed[i]
        if i % 8 == 7:
            result += math.log(product)
            product = 1.0
        result -= logits[y[i], i] - highest[i]
    return result + math.log(product)


@inner
def cross_entropy(logits: Array, y: Array, highest: Array, summed: Array) -> float:
    """Return the mean cross-entropy of the rows of y; replace the logits by its gradient, which is 0 in other columns.

    `highest` and `summed [B]` are overwritten.
    """
    classes, rows = logits.shape
    highest_and_sum(logits, highest, summed)
    result = log_losses(logits, y, highest, summed)
    real = logits.dtype.type
    share = real(1.0 / y.size)
    for i in range(0, rows, lanes(logits)):
        scale, top = splat(share) / load(summed, i), load(highest, i)
        for c in range(classes):
            store(logits[c], i, exponential(load(logits[c], i) - top) * scale)
    for i in range(y.size):
        logits[y[i], i] -= share
    for c in range(classes):
        for i in range(y.size, rows):
            logits[c, i] = real(0)
    return result / y.size
