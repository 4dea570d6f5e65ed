"""Columns as kernels. A column is a host of its own width without seeds, so the kernels of hosts compute it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from actors.kernels.decorators import Array
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.hosts.layers import copy
from actors.kernels.hosts.network import ABSENT, BLENDED, Seeds, Work, backward, block_offset, enter, forward, padded
from actors.kernels.vectors import lanes, load, splat, store


class Columns(NamedTuple):
    """The columns in C slots.

    Rows are long enough for the widest column; the others use the first entries of theirs. Kernels cut arrays of the
    true width out of them, so that they are compiled once for all widths.
    """

    q: Array  # [C, Q] parameters, in the order of a host's
    first_moment: Array  # [C, Q]
    second_moment: Array  # [C, Q]
    width: Array  # [C] hidden units
    alpha: Array  # [C]
    mode: Array  # [C] ABSENT, BLENDED or TRAINING
    order: Array  # [C] all columns, in the order in which they are mixed
    work: Array  # [C, N] intermediate results, see `column_work`


def work_size(blocks: int, width: int, classes: int, rows: int) -> int:
    """Return how many numbers `column_work` cuts out of a row of `Columns.work`."""
    return padded(rows) * ((blocks + 1) * (3 * width + 1) + 2 * classes + 4 * width + 2)


@inner
def column_work(columns: Columns, c: int, blocks: int, classes: int, length: int) -> Work:
    """Return the work space of a column, for rows of this length, without room for seeds."""
    flat, width = columns.work[c], columns.width[c]
    hidden_size, logits_size = (blocks + 1) * width * length, classes * length
    n = hidden_size
    leaving, xhat, active = flat[:n], flat[n : 2 * n], flat[2 * n : 3 * n]
    n = 3 * hidden_size
    logits, summed = flat[n : n + logits_size], flat[n + logits_size : n + 2 * logits_size]
    n += 2 * logits_size
    inverse = flat[n : n + (blocks + 1) * length]
    n += (blocks + 1) * length
    flow, inside = flat[n : n + 2 * width * length], flat[n + 2 * width * length : n + 4 * width * length]
    n += 4 * width * length
    hidden = leaving.reshape(blocks + 1, width, length)
    return Work(
        hidden,
        hidden,
        xhat.reshape(blocks + 1, width, length),
        inverse.reshape(blocks + 1, length),
        active.reshape(blocks + 1, width, length),
        hidden[:0],
        hidden[:0],
        hidden[:0],
        logits.reshape(classes, length)[:0],
        logits.reshape(classes, length),
        summed.reshape(classes, length),
        flow.reshape(2, width, length),
        inside.reshape(2, width, length),
        flat[n : n + 2 * length].reshape(2, length),
    )


@inner
def whole_pass() -> tuple[Any, Any]:
    """Return the mode and first slot of a pass through a column; constants would compile kernels again."""
    return np.int64(BLENDED), np.int64(-1)


@inner
def num_params(features: int, width: int, classes: int, blocks: int) -> int:
    """Return the number of parameters of a host."""
    return block_offset(features, width, blocks) + 2 * width + width * classes + classes


@inner
def without_seeds(seeds: Seeds, absent: Array) -> Seeds:
    """Return the slots of a column, in which nothing grows; `absent [S]` is 0."""
    return Seeds(seeds.q, seeds.size, seeds.formula, seeds.hidden, seeds.blend, seeds.alpha, absent)


@inner
def columns_up_to(columns: Columns, mode: int) -> int:
    """Return the set of columns that take part in a pass of this mode, as bits."""
    bits = 0
    for c in range(columns.mode.size):
        if ABSENT < columns.mode[c] <= mode:
            bits |= 1 << c
    return bits


@inner
def run_columns(columns: Columns, bits: int, bare: Seeds, x: Array, offset: int, classes: int, length: int) -> None:
    """Compute the logits of each column in `bits`, and keep what the backward pass needs.

    The input are columns `offset` to `offset` + `length` of x [F, N].
    """
    for c in range(columns.mode.size):
        if bits >> c & 1:
            work = column_work(columns, c, bare.mode.size, classes, length)
            enter(columns.q[c], x, offset, work.leaving[0])
            mode, slot = whole_pass()
            forward(columns.q[c], bare, mode, slot, work, x.shape[0])


@inner
def mix_columns(columns: Columns, bits: int, blocks: int, work: Work) -> None:
    """Compute `work.total`: the host's logits z, in which each column c in `bits` is mixed in its turn,
    z = (1 - alpha) z + alpha c."""
    copy(work.logits, work.total)
    for k in range(columns.mode.size if bits else 0):
        c = columns.order[k]
        if bits >> c & 1:
            mix_column(columns, c, blocks, work)


@inner
def mix_column(columns: Columns, c: int, blocks: int, work: Work) -> None:
    """Mix the logits of one column into `work.total`."""
    classes, length = work.total.shape
    logits = column_work(columns, c, blocks, classes, length).logits
    real = logits.dtype.type
    alpha, rest = splat(real(columns.alpha[c])), splat(real(1.0 - columns.alpha[c]))
    for k in range(classes):
        row, out = logits[k], work.total[k]
        for i in range(0, length, lanes(logits)):
            store(out, i, rest * load(out, i) + alpha * load(row, i))


@inner
def column_back(columns: Columns, c: int, bare: Seeds, x: Array, dlogits: Array, dq: Array) -> None:
    """Write the parameter gradients of a column to `dq [C, Q]`, given those of the logits that it is mixed into."""
    classes, length = dlogits.shape
    work = column_work(columns, c, bare.mode.size, classes, length)
    scaled(dlogits, columns.alpha[c], work.total)
    host, slot = whole_pass()
    backward(columns.q[c], bare, host, slot, x, work, dq[c], bare.q, columns.alpha[:0])


@inner
def leave_columns(
    columns: Columns, bits: int, bare: Seeds, x: Array, dlogits: Array, dq: Array, with_params: bool
) -> None:
    """Turn the gradient of the mixed logits into that of the host's, in place; the columns in `bits` were mixed in.

    Write the columns' parameter gradients to `dq [C, Q]` if `with_params`.
    """
    for k in range(columns.mode.size - 1 if bits else -1, -1, -1):
        c = columns.order[k]
        if bits >> c & 1:
            if with_params:
                column_back(columns, c, bare, x, dlogits, dq)
            scaled(dlogits, 1.0 - columns.alpha[c], dlogits)


@inner
def scaled(x: Array, factor: float, out: Array) -> None:
    """Compute out = factor * x, for x [K, B]."""
    by = splat(x.dtype.type(factor))
    for k in range(x.shape[0]):
        row, to = x[k], out[k]
        for i in range(0, x.shape[1], lanes(x)):
            store(to, i, by * load(row, i))
