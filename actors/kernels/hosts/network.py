"""The MLP host with its seeds: forward pass, loss and backward pass, each also from or to a slot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from actors.kernels.decorators import Array
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.hosts.layers import (
    copy,
    norm,
    rectified_scale_and_shift,
    rectify_input,
    scale_and_shift,
    scale_params,
    standardize,
    standardize_input,
)
from actors.kernels.hosts.products import (
    add_product,
    affine,
    affine_at,
    affine_input,
    affine_params,
    clear,
    zero_and_one,
)
from actors.kernels.hosts.seeds import blend_back, blend_in, change, change_back
from actors.kernels.vectors import PADDING, lanes, load, splat, store

ABSENT, BLENDED, TRAINING = range(3)
"""Modes of a seed in an epoch: off, part of the host, or training without affecting the host."""


@inner
def block_offset(features: int, width: int, slot: int) -> int:
    """Return where the block of a slot begins in the host's parameter vector: gain, bias, matrix, offset."""
    return features * width + width + slot * (width * width + 3 * width)


@inner
def enter(p: Array, x: Array, offset: int, h: Array) -> None:
    """Compute the input layer, h [W, B] of x [F, N], columns `offset` to `offset` + B."""
    n = x.shape[0] * h.shape[0]
    affine_at(x, p[:n], p[n : n + h.shape[0]], h, offset)


@inner
def run_block(p: Array, start: int, h: Array, xhat: Array, inverse: Array, active: Array, out: Array) -> None:
    """Compute out = h + w' ReLU(LayerNorm(h)) + b, for the block whose parameters begin at `start`."""
    width, rows = h.shape
    standardize(h, xhat, inverse)
    rectified_scale_and_shift(xhat, p[start : start + width], p[start + width : start + 2 * width], active)
    n = start + 2 * width
    last = n + width * width
    for w in range(width):
        x, y, b = h[w], out[w], splat(p[last + w])
        for i in range(0, rows, lanes(h)):
            store(y, i, load(x, i) + b)
    zero, one = zero_and_one()
    add_product(active, p[n:last], out, zero, width, one)


@inner
def block_back(
    p: Array, start: int, xhat: Array, inverse: Array, active: Array, d: Array, inside: Array, dp: Array,
    with_params: bool,
) -> None:  # fmt: skip
    """Turn the gradient `d` of a block's output into that of its input, in place; `inside [W, B]` is overwritten.

    Write parameter gradients to `dp` if `with_params`.
    """
    width = d.shape[0]
    n, s = start + 2 * width, start + width
    last = n + width * width
    if with_params:
        affine_params(active, d, dp[n:last], dp[last : last + width])
    affine_input(d, p[n:last], inside)
    rectify_input(active, inside)
    if with_params:
        scale_params(xhat, inside, dp[start:s], dp[s:n])
    standardize_input(xhat, inverse, p[start:s], inside, d)


@inner
def head(p: Array, start: int, h: Array, xhat: Array, inverse: Array, active: Array, logits: Array) -> None:
    """Compute logits [C, B] of the last hidden tensor; the parameters are gain, bias, matrix, offset."""
    width, classes = h.shape[0], logits.shape[0]
    standardize(h, xhat, inverse)
    scale_and_shift(xhat, p[start : start + width], p[start + width : start + 2 * width], active)
    n = start + 2 * width
    last = n + width * classes
    affine(active, p[n:last], p[last : last + classes], logits)


@inner
def head_back(
    p: Array, start: int, xhat: Array, inverse: Array, active: Array, dlogits: Array, d: Array, inside: Array,
    dp: Array, with_params: bool,
) -> None:  # fmt: skip
    """Compute the gradient d [W, B] of the last hidden tensor; write parameter gradients if `with_params`.

    `inside [W, B]` is overwritten.
    """
    width, classes = d.shape[0], dlogits.shape[0]
    n, s = start + 2 * width, start + width
    last = n + width * classes
    if with_params:
        affine_params(active, dlogits, dp[n:last], dp[last : last + classes])
    affine_input(dlogits, p[n:last], inside)
    if with_params:
        scale_params(xhat, inside, dp[start:s], dp[s:n])
    clear(d)
    standardize_input(xhat, inverse, p[start:s], inside, d)


class Seeds(NamedTuple):
    """The seeds in S slots."""

    q: Array  # [S, Q] parameters; the last width + 1 of a row are the gate of its blend
    size: Array  # [S] parameters, without the gate, which are the first of a row
    formula: Array  # [S] NORM, RESIDUAL, GATED or EXCITATION, see `kernels.seeds`
    hidden: Array  # [S] width of the inner layer
    blend: Array  # [S] index into BLENDS
    alpha: Array  # [S]
    mode: Array  # [S] ABSENT, BLENDED or TRAINING


class Work(NamedTuple):
    """Intermediate results that the backward pass needs, and space for its own.

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
    flow: Array  # [2, W, B] gradients of a hidden tensor and of a seed's change
    inside: Array  # [2, largest hidden, B] gradients inside blocks and seeds
    by_row: Array  # [2, B]


def padded(rows: int) -> int:
    """Return the length of hidden tensors' rows for so many rows of data."""
    return -(-rows // PADDING) * PADDING


def make_work(slots: int, width: int, max_hidden: int, classes: int, rows: int, dtype: Any) -> Work:
    """Allocate a work space for minibatches of `rows` rows."""
    length, largest = padded(rows), max(max_hidden, 2 * width)  # a gated seed also keeps its product

    def zeros(*shape: int) -> Array:
        return np.zeros((*shape, length), dtype)

    return Work(
        entering=zeros(slots + 1, width),
        leaving=zeros(slots + 1, width),
        xhat=zeros(slots + 1, width),
        inverse=zeros(slots + 1),
        active=zeros(slots + 1, width),
        first=zeros(slots, largest),
        second=zeros(slots, largest),
        change=zeros(slots, width),
        gate_value=zeros(slots),
        logits=zeros(classes),
        total=zeros(classes),
        flow=zeros(2, width),
        inside=zeros(2, largest),
        by_row=zeros(2),
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
            copy(here, leaving)
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
    d, dc, inside = work.flow[0], work.flow[1], work.inside[0, :width]
    start, gate = block_offset(features, width, slots), seeds.q.shape[1] - width - 1
    xhat, inverse, active = work.xhat, work.inverse, work.active
    head_back(p, start, xhat[slots], inverse[slots], active[slots], work.total, d, inside, dp, host)
    for s in range(slots - 1, max(to_slot, 0) - 1, -1):
        if at_slots.size > 0:
            at_slots[s] = norm(d)
        if ABSENT < seeds.mode[s] <= mode:
            h, q, with_params = work.entering[s + 1], seeds.q[s], seeds.mode[s] == mode
            blend, alpha = seeds.blend[s], seeds.alpha[s]
            # Nothing inside blocks is kept here, so that `inside` is free.
            blend_back(
                blend, alpha, q[gate:], h, work.change[s], work.gate_value[s], d, dc, dq[s, gate:], with_params, inside
            )
            first, second = work.first[s], work.second[s]
            change_back(seeds.formula[s], seeds.hidden[s], q, h, first, second, dc, d, dq[s], with_params, work.inside)
        if s != to_slot:
            start = block_offset(features, width, s)
            block_back(p, start, xhat[s], inverse[s], active[s], d, inside, dp, host)
    if host:
        n = features * width
        affine_params(x, d, dp[:n], dp[n : n + width])
