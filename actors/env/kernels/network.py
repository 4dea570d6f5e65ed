"""The MLP host with its seeds: forward pass, loss and backward pass, each also from or to a slot."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.kernels.jit import inner
from actors.env.kernels.layers import (
    affine,
    affine_input,
    affine_params,
    exponential,
    rectify_input,
    scale_and_shift,
    scale_params,
    scale_rows,
    standardize,
    standardize_input,
)
from actors.env.kernels.seeds import blend_back, blend_in, change, change_back

Array = NDArray[Any]
ABSENT, BLENDED, TRAINING = range(3)
"""Modes of a seed in an epoch: off, part of the host, or training without affecting the host."""


@inner
def block_offset(features: int, width: int, slot: int) -> int:
    """Return where the block of a slot begins in the host's parameter vector: gain, bias, matrix, offset."""
    return features * width + width + slot * (width * width + 3 * width)


@inner
def enter(p: Array, x: Array, h: Array) -> None:
    """Compute the input layer, h [W, B] of x [F, B]."""
    n = x.shape[0] * h.shape[0]
    affine(x, p[:n].reshape(x.shape[0], h.shape[0]), p[n : n + h.shape[0]], h)


@inner
def run_block(p: Array, start: int, h: Array, xhat: Array, inverse: Array, active: Array, out: Array) -> None:
    """Compute out = h + w' ReLU(LayerNorm(h)) + b, for the block whose parameters begin at `start`."""
    width = h.shape[0]
    standardize(h, xhat, inverse)
    scale_and_shift(xhat, p[start : start + width], p[start + width : start + 2 * width], active, True)
    n = start + 2 * width
    affine(
        active, p[n : n + width * width].reshape(width, width), p[n + width * width : n + width * width + width], out
    )
    for w in range(width):
        x, y = h[w], out[w]
        for i in range(y.size):
            y[i] += x[i]


@inner
def block_back(
    p: Array, start: int, xhat: Array, inverse: Array, active: Array, d: Array, dp: Array, with_params: bool
) -> None:
    """Turn the gradient `d` of a block's output into that of its input, in place.

    Write parameter gradients to `dp` if `with_params`.
    """
    width, rows = d.shape
    n, s = start + 2 * width, start + width
    if with_params:
        last = n + width * width
        affine_params(active, d, dp[n:last].reshape(width, width), dp[last : last + width])
    inner = np.empty((width, rows), d.dtype)
    affine_input(d, p[n : n + width * width].reshape(width, width), inner)
    rectify_input(active, inner)
    if with_params:
        scale_params(xhat, inner, dp[start:s], dp[s:n])
    scale_rows(inner, p[start:s])
    standardize_input(xhat, inverse, inner)
    for w in range(width):
        x, y = inner[w], d[w]
        for i in range(rows):
            y[i] += x[i]


@inner
def head(p: Array, start: int, h: Array, xhat: Array, inverse: Array, active: Array, logits: Array) -> None:
    """Compute logits [C, B] of the last hidden tensor; the parameters are gain, bias, matrix, offset."""
    width, classes = h.shape[0], logits.shape[0]
    standardize(h, xhat, inverse)
    scale_and_shift(xhat, p[start : start + width], p[start + width : start + 2 * width], active, False)
    n = start + 2 * width
    last = n + width * classes
    affine(active, p[n:last].reshape(width, classes), p[last : last + classes], logits)


@inner
def head_back(
    p: Array,
    start: int,
    xhat: Array,
    inverse: Array,
    active: Array,
    dlogits: Array,
    d: Array,
    dp: Array,
    with_params: bool,
) -> None:
    """Compute the gradient d [W, B] of the last hidden tensor; write parameter gradients if `with_params`."""
    width, classes = d.shape[0], dlogits.shape[0]
    n = start + 2 * width
    last = n + width * classes
    if with_params:
        affine_params(active, dlogits, dp[n:last].reshape(width, classes), dp[last : last + classes])
    affine_input(dlogits, p[n:last].reshape(width, classes), d)
    if with_params:
        scale_params(xhat, d, dp[start : start + width], dp[start + width : n])
    scale_rows(d, p[start : start + width])
    standardize_input(xhat, inverse, d)


@inner
def cross_entropy(logits: Array, y: Array, count: int) -> float:
    """Return the mean cross-entropy of the first `count` rows; replace the logits by its gradient."""
    classes = logits.shape[0]
    total = 0.0
    share = logits.dtype.type(1.0 / count)
    for i in range(count):
        highest = logits[0, i]
        for c in range(1, classes):
            if logits[c, i] > highest:
                highest = logits[c, i]
        label_logit = logits[y[i], i] - highest
        summed = logits.dtype.type(0)
        for c in range(classes):
            logits[c, i] = exponential(logits[c, i] - highest)
            summed += logits[c, i]
        total += math.log(summed) - label_logit
        for c in range(classes):
            logits[c, i] = logits[c, i] / summed * share
        logits[y[i], i] -= share
    return total / count


@inner
def norm(x: Array) -> float:
    """Return the Euclidean norm of x [N, B]."""
    squares = x.dtype.type(0)
    for n in range(x.shape[0]):
        row = x[n]
        for i in range(row.size):
            squares += row[i] * row[i]
    return float(np.sqrt(squares))


class Seeds(NamedTuple):
    """The seeds in S slots."""

    q: Array  # [S, Q] parameters; the last width + 1 of a row are the gate of its blend
    formula: Array  # [S] NORM, RESIDUAL, GATED or EXCITATION, see `kernels.seeds`
    hidden: Array  # [S] width of the inner layer
    blend: Array  # [S] index into BLENDS
    alpha: Array  # [S]
    mode: Array  # [S] ABSENT, BLENDED or TRAINING


class Work(NamedTuple):
    """Intermediate results that the backward pass needs.

    In tensors of S + 1 entries, index 0 is the input layer and s + 1 is slot s.
    """

    entering: Array  # [S + 1, W, B] input of a slot
    leaving: Array  # [S + 1, W, B] output of a slot
    xhat: Array  # [S + 1, W, B] of each block's LayerNorm, the head last, as in the next two
    inverse: Array  # [S + 1, B]
    active: Array  # [S + 1, W, B] input of the matrix
    first: Array  # [S, largest hidden, B] inside seeds
    second: Array  # [S, largest hidden, B]
    change: Array  # [S, W, B] output of a seed minus its input
    gate_value: Array  # [S, B] after the sigmoid
    logits: Array  # [C, B] of the stream
    total: Array  # [C, B] with those of columns added; then the gradient of the loss with respect to them


def make_work(slots: int, width: int, max_hidden: int, classes: int, rows: int, dtype: Any) -> Work:
    """Allocate a work space for minibatches of `rows` rows."""

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, dtype)

    hidden, inner = (slots + 1, width, rows), (slots, max(max_hidden, width), rows)
    return Work(
        zeros(*hidden),
        zeros(*hidden),
        zeros(*hidden),
        zeros(slots + 1, rows),
        zeros(*hidden),
        zeros(*inner),
        zeros(*inner),
        zeros(slots, width, rows),
        zeros(slots, rows),
        zeros(classes, rows),
        zeros(classes, rows),
    )


@inner
def grow(seeds: Seeds, s: int, work: Work, h: Array, out: Array) -> None:
    """Compute out, h with the seed of slot s blended in."""
    gate = seeds.q[s, seeds.q.shape[1] - h.shape[0] - 1 :]
    change(seeds.formula[s], seeds.hidden[s], seeds.q[s], h, work.first[s], work.second[s], work.change[s])
    blend_in(seeds.blend[s], seeds.alpha[s], gate, h, work.change[s], work.gate_value[s], out)


@inner
def forward(p: Array, seeds: Seeds, mode: int, from_slot: int, work: Work, features: int) -> None:
    """Compute the logits from the output of the input layer or, if `from_slot` is not -1, from that slot's input.

    Seeds of mode BLENDED take part; those of mode TRAINING only if `mode` is TRAINING.
    """
    slots = seeds.mode.size
    for s in range(max(from_slot, 0), slots):
        leaving = work.leaving[s + 1]
        here = leaving if seeds.mode[s] == ABSENT else work.entering[s + 1]
        if s != from_slot:
            start = block_offset(features, here.shape[0], s)
            run_block(p, start, work.leaving[s], work.xhat[s], work.inverse[s], work.active[s], here)
        if ABSENT < seeds.mode[s] <= mode:
            grow(seeds, s, work, here, leaving)
        elif seeds.mode[s] != ABSENT:
            leaving[:] = here
    start = block_offset(features, work.leaving.shape[1], slots)
    head(p, start, work.leaving[slots], work.xhat[slots], work.inverse[slots], work.active[slots], work.logits)


@inner
def backward(
    p: Array, seeds: Seeds, mode: int, to_slot: int, x: Array, work: Work, dp: Array, dq: Array, at_slots: Array
) -> None:
    """Propagate the gradient of the logits, `work.total`, back to `to_slot` or, if that is -1, through the input layer.

    `mode` is that of the forward pass. Parameter gradients are written for seeds of this mode and, if it is BLENDED,
    for the host. The norms of the gradients of all slots' outputs are written to `at_slots`, unless it is empty.
    """
    slots, features, width = seeds.mode.size, x.shape[0], work.leaving.shape[1]
    host = mode == BLENDED
    d, dc = np.empty_like(work.leaving[0]), np.empty_like(work.leaving[0])
    start, gate = block_offset(features, width, slots), seeds.q.shape[1] - width - 1
    head_back(p, start, work.xhat[slots], work.inverse[slots], work.active[slots], work.total, d, dp, host)
    for s in range(slots - 1, max(to_slot, 0) - 1, -1):
        if at_slots.size > 0:
            at_slots[s] = norm(d)
        if ABSENT < seeds.mode[s] <= mode:
            h, q, with_params = work.entering[s + 1], seeds.q[s], seeds.mode[s] == mode
            blend, alpha = seeds.blend[s], seeds.alpha[s]
            blend_back(blend, alpha, q[gate:], h, work.change[s], work.gate_value[s], d, dc, dq[s, gate:], with_params)
            change_back(
                seeds.formula[s], seeds.hidden[s], q, h, work.first[s], work.second[s], dc, d, dq[s], with_params
            )
        if s != to_slot:
            start = block_offset(features, width, s)
            block_back(p, start, work.xhat[s], work.inverse[s], work.active[s], d, dp, host)
    if host:
        n = features * width
        affine_params(x, d, dp[:n].reshape(features, width), dp[n : n + width])
