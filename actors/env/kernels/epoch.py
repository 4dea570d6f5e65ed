"""`train_epoch`: one epoch of a host and its seeds. Each minibatch: main pass, shadow pass, clipping, AdamW."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.kernels.jit import inner, kernel
from actors.env.kernels.network import ABSENT, BLENDED, TRAINING, Seeds, Work, backward, cross_entropy, enter, forward

Array = NDArray[Any]
BETA1, BETA2, ADAM_EPS = 0.9, 0.999, 1e-8


class Adam(NamedTuple):
    """AdamW moments and step counters of the host and of S seeds."""

    host_first: Array  # [P]
    host_second: Array  # [P]
    seed_first: Array  # [S, Q]
    seed_second: Array  # [S, Q]
    steps: Array  # [S + 1], the host last


@inner
def adam(p: Array, g: Array, first: Array, second: Array, step: int, lr: float, decay: float) -> None:
    """Take an AdamW step (Loshchilov & Hutter, 2019), the `step`-th for this vector."""
    real = p.dtype.type
    rate = real(lr / (1.0 - BETA1**step))
    root = real(1.0 / np.sqrt(1.0 - BETA2**step))
    kept, move, keep, add, eps = (
        real(1.0 - lr * decay),
        real(1.0 - BETA1),
        real(BETA2),
        real(1.0 - BETA2),
        real(ADAM_EPS),
    )
    for i in range(p.size):
        m = first[i] + move * (g[i] - first[i])
        v = keep * second[i] + add * g[i] * g[i]
        first[i], second[i] = m, v
        p[i] = p[i] * kept - rate * m / (np.sqrt(v) * root + eps)


@inner
def clip(g: Array, clip_norm: float) -> float:
    """Scale `g` in place to a norm of at most `clip_norm`; return the norm before."""
    real = g.dtype.type
    squares = real(0)
    for i in range(g.size):
        squares += g[i] * g[i]
    norm = np.sqrt(squares)
    scale = real(clip_norm) / (norm + real(1e-6))
    if scale < real(1):
        for i in range(g.size):
            g[i] *= scale
    elif not scale >= real(1):  # propagate NaN
        g[:] = scale
    return float(norm)


@inner
def gather(data: Array, rows: Array, x: Array) -> None:
    """Copy rows of `data [N, F]` to x [F, B]."""
    for i in range(rows.size):
        row = data[rows[i]]
        for f in range(row.size):
            x[f, i] = row[f]


@kernel
def train_epoch(
    data: Array,
    labels: Array,
    rows: Array,
    p: Array,
    seeds: Seeds,
    moments: Adam,
    work: Work,
    rates: tuple[float, float, float, float],
    norms: Array,
) -> float:
    """Train on minibatches `rows [T, B]` of `data [N, F]`; return the mean loss of the main passes.

    `rates` are the learning rates of the host and of seeds, the weight decay, and the clip norm. The gradient norms of
    seeds before clipping are written to `norms [T, S]`.
    """
    host_lr, seed_lr, decay, clip_norm = rates
    slots, features = seeds.mode.size, data.shape[1]
    dp, dq = np.empty_like(p), np.zeros_like(seeds.q)
    x = np.empty((features, rows.shape[1]), p.dtype)
    y = np.empty(rows.shape[1], np.int64)
    first_training = slots
    for s in range(slots - 1, -1, -1):
        if seeds.mode[s] == TRAINING:
            first_training = s
    last = BLENDED if first_training == slots else TRAINING
    total = 0.0
    for t in range(rows.shape[0]):
        gather(data, rows[t], x)
        for i in range(y.size):
            y[i] = labels[rows[t, i]]
        enter(p, x, work.leaving[0])
        # The main pass; then, if a seed is training, the shadow pass: the same minibatch with the training seeds on and
        # everything else constant. It resumes at their first slot, before which it equals the main pass.
        for mode in range(BLENDED, last + 1):
            slot = -1 if mode == BLENDED else first_training
            forward(p, seeds, mode, slot, work, features)
            loss = cross_entropy(work.logits, y, y.size)
            total += loss if mode == BLENDED else 0.0
            backward(p, seeds, mode, slot, x, work, dp, dq)
        clip(dp, clip_norm)
        moments.steps[slots] += 1
        adam(p, dp, moments.host_first, moments.host_second, moments.steps[slots], host_lr, decay)
        for s in range(slots):
            if seeds.mode[s] != ABSENT:
                norms[t, s] = clip(dq[s], clip_norm)
                moments.steps[s] += 1
                first, second = moments.seed_first[s], moments.seed_second[s]
                adam(seeds.q[s], dq[s], first, second, moments.steps[s], seed_lr, decay)
    mean: float = total / rows.shape[0]
    return mean
