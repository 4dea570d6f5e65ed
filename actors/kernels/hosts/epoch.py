"""`train_epoch`: an epoch of a host, its seeds and columns. Each minibatch: main pass, shadow pass, clipping, AdamW."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from actors.kernels.cross_entropy import cross_entropy
from actors.kernels.decorators import Array, kernel
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.hosts.columns import (
    Columns,
    column_back,
    columns_up_to,
    leave_columns,
    mix_column,
    mix_columns,
    num_params,
    run_columns,
    whole_pass,
    without_seeds,
)
from actors.kernels.hosts.layers import norm
from actors.kernels.hosts.network import ABSENT, BLENDED, TRAINING, Seeds, Work, backward, enter, forward
from actors.kernels.hosts.products import zero_and_one
from actors.kernels.hosts.seeds import GATE

BETA1, BETA2, ADAM_EPS = 0.9, 0.999, 1e-8


class Adam(NamedTuple):
    """AdamW moments of the host and of S seeds, and the step counters of all; `Columns` has its own moments."""

    host_first: Array  # [P]
    host_second: Array  # [P]
    seed_first: Array  # [S, Q]
    seed_second: Array  # [S, Q]
    steps: Array  # [S + C + 1], by slot, the host last


@inner
def adam(p: Array, g: Array, first: Array, second: Array, step: int, lr: float, decay: float) -> None:
    """Take an AdamW step (Loshchilov & Hutter, 2019), the `step`-th for this vector."""
    real = p.dtype.type
    rate = real(lr / (1.0 - BETA1**step))
    root = real(1.0 / np.sqrt(1.0 - BETA2**step))
    kept, eps = real(1.0 - lr * decay), real(ADAM_EPS)
    move, keep, add = real(1.0 - BETA1), real(BETA2), real(1.0 - BETA2)
    for i in range(p.size):
        m = first[i] + move * (g[i] - first[i])
        v = keep * second[i] + add * g[i] * g[i]
        first[i], second[i] = m, v
        p[i] = p[i] * kept - rate * m / (np.sqrt(v) * root + eps)


@inner
def squares(g: Array) -> Any:
    """Return the sum of the squares of a vector."""
    result = g.dtype.type(0)
    for i in range(g.size):
        result += g[i] * g[i]
    return result


@inner
def scale(g: Array, squared_norm: Any, clip_norm: float) -> None:
    """Scale `g` in place, so that the norm of the vector that it is part of is at most `clip_norm`."""
    real = g.dtype.type
    factor = real(clip_norm) / (np.sqrt(squared_norm) + real(1e-6))
    if not factor >= real(1):  # also if it is NaN, which spreads
        for i in range(g.size):
            g[i] *= factor


@inner
def gather(data: Array, rows: Array, x: Array) -> None:
    """Copy rows of `data [N, F]` to x [F, B]; copies of the last one fill the columns beyond."""
    for i in range(x.shape[1]):
        row = data[rows[min(i, rows.size - 1)]]
        for f in range(row.size):
            x[f, i] = row[f]


class Gradients(NamedTuple):
    """Gradients, and the minibatch that they are of."""

    host: Array  # [P]
    seeds: Array  # [S, Q]
    columns: Array  # [C, Q]
    x: Array  # [F, B]
    y: Array  # [B], without padding


@kernel
def train_epoch(
    data: Array, labels: Array, rows: Array, p: Array, seeds: Seeds, columns: Columns, moments: Adam, work: Work,
    rates: tuple[float, float, float], norms: Array, scores: Array,
) -> float:  # fmt: skip
    """Train on minibatches `rows [T, B]` of `data [N, F]`; return the mean loss of the main passes.

    `rates` are the learning rate, the weight decay, and the clip norm. The gradient norms of
    seeds and columns before clipping are written to `norms [T, S + C]`, and the score of each slot (see
    `EpochResult.scores`) to `scores [S + C]`; scores are NaN if the host has no gradient.
    """
    x = np.empty((data.shape[1], work.logits.shape[1]), p.dtype)
    y = np.empty(rows.shape[1], np.int64)
    gradients = Gradients(np.empty_like(p), np.zeros_like(seeds.q), np.empty_like(columns.q), x, y)
    absent = np.zeros_like(seeds.mode)
    return train(data, labels, rows, p, seeds, columns, moments, work, rates, norms, scores, gradients, absent)


@inner
def train(
    data: Array, labels: Array, rows: Array, p: Array, seeds: Seeds, columns: Columns, moments: Adam, work: Work,
    rates: tuple[float, float, float], norms: Array, scores: Array, gradients: Gradients, absent: Array,
) -> float:  # fmt: skip
    """Train an epoch, see `train_epoch`; `absent [S]` is 0."""
    clip_norm = rates[2]
    slots, features, classes, length = seeds.mode.size, data.shape[1], work.logits.shape[0], work.logits.shape[1]
    bare, unscored = without_seeds(seeds, absent), scores[:0]
    dp, dq, dcolumns, x, y = gradients
    blended_columns, all_columns = columns_up_to(columns, BLENDED), columns_up_to(columns, TRAINING)
    first_training = slots
    for s in range(slots - 1, -1, -1):
        if seeds.mode[s] == TRAINING:
            first_training = s
    total = 0.0
    first_column, _ = zero_and_one()
    blended, first_slot = whole_pass()
    learning: Any = np.int64(TRAINING)
    for t in range(rows.shape[0]):
        gather(data, rows[t], x)
        for i in range(y.size):
            y[i] = labels[rows[t, i]]
        enter(p, x, first_column, work.leaving[0])
        if all_columns:
            run_columns(columns, all_columns, bare, x, first_column, classes, length)
        # The main pass, through the columns that joined, the last one first.
        forward(p, seeds, blended, first_slot, work, features)
        mix_columns(columns, blended_columns, slots, work)
        total += cross_entropy(work.total, y, work.by_row[0], work.by_row[1])
        scored = t == rows.shape[0] - 1
        if scored:
            scores[slots:] = norm(work.total)
        leave_columns(columns, blended_columns, bare, x, work.total, dcolumns, True)
        backward(p, seeds, blended, first_slot, x, work, dp, dq, scores if scored else unscored)
        # A column that learns is mixed with the model alone, which is constant; at strength 1, nothing is left of it.
        for c in range(columns.mode.size if all_columns != blended_columns else 0):
            if columns.mode[c] == TRAINING:
                mix_columns(columns, blended_columns, slots, work)
                mix_column(columns, c, slots, work)
                cross_entropy(work.total, y, work.by_row[0], work.by_row[1])
                column_back(columns, c, bare, x, work.total, dcolumns)
        # The shadow pass of seeds that learn in the stream: the same minibatch with them on and everything else
        # constant. It resumes at the first such slot, before which it equals the main pass.
        if first_training < slots:
            forward(p, seeds, learning, first_training, work, features)
            mix_columns(columns, blended_columns, slots, work)
            cross_entropy(work.total, y, work.by_row[0], work.by_row[1])
            leave_columns(columns, blended_columns, bare, x, work.total, dcolumns, False)
            backward(p, seeds, learning, first_training, x, work, dp, dq, unscored)
        squared = squares(dp)
        scale(dp, squared, clip_norm)
        if t == rows.shape[0] - 1:
            host_norm = float(np.sqrt(squared))
            for s in range(scores.size):
                scores[s] = scores[s] / host_norm if host_norm > 0 else np.nan
        moments.steps[-1] += 1
        adam(p, dp, moments.host_first, moments.host_second, moments.steps[-1], rates[0], rates[1])
        for s in range(slots):
            if seeds.mode[s] != ABSENT:
                norms[t, s] = step_seed(seeds, s, work.leaving.shape[1], dq[s], moments, rates)
        for c in range(columns.mode.size):
            if columns.mode[c] != ABSENT:
                n, s = num_params(features, columns.width[c], classes, slots), slots + c
                grad = dcolumns[c, :n]
                squared = squares(grad)
                norms[t, s] = np.sqrt(squared)
                scale(grad, squared, clip_norm)
                moments.steps[s] += 1
                first, second = columns.first_moment[c, :n], columns.second_moment[c, :n]
                adam(columns.q[c, :n], grad, first, second, moments.steps[s], rates[0], rates[1])
    mean: float = total / rows.shape[0]
    return mean


@inner
def step_seed(seeds: Seeds, s: int, width: int, grad: Array, moments: Adam, rates: tuple[float, float, float]) -> Any:
    """Clip the gradient of a seed, take an optimizer step, and return the norm before clipping.

    Rows are long enough for the largest seed; what lies between the parameters and the gate is left alone.
    """
    q, first, second = seeds.q[s], moments.seed_first[s], moments.seed_second[s]
    size, gate = seeds.size[s], q.size - width - 1
    squared = squares(grad[:size])
    if seeds.blend[s] == GATE:
        squared += squares(grad[gate:])
    moments.steps[s] += 1
    step = moments.steps[s]
    scale(grad[:size], squared, rates[2])
    adam(q[:size], grad[:size], first[:size], second[:size], step, rates[0], rates[1])
    if seeds.blend[s] == GATE:
        scale(grad[gate:], squared, rates[2])
        adam(q[gate:], grad[gate:], first[gate:], second[gate:], step, rates[0], rates[1])
    return np.sqrt(squared)
