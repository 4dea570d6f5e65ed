"""Columns as kernels. A column is a host of its own width without seeds, so the kernels of hosts compute it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.kernels.jit import inner
from actors.env.kernels.network import ABSENT, BLENDED, Seeds, Work, backward, block_offset, enter, forward

Array = NDArray[Any]


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
    work: Array  # [C, N] intermediate results, see `column_work`


def work_size(blocks: int, width: int, classes: int, rows: int) -> int:
    """Return how many numbers `column_work` cuts out of a row of `Columns.work`."""
    return rows * ((blocks + 1) * (3 * width + 1) + 2 * classes)


@inner
def column_work(columns: Columns, c: int, blocks: int, classes: int, rows: int) -> Work:
    """Return the work space of a column, without room for seeds."""
    flat, width = columns.work[c], columns.width[c]
    n, m = (blocks + 1) * width * rows, classes * rows
    leaving, xhat, active = flat[:n], flat[n : 2 * n], flat[2 * n : 3 * n]
    logits, total = flat[3 * n : 3 * n + m], flat[3 * n + m : 3 * n + 2 * m]
    inverse = flat[3 * n + 2 * m : 3 * n + 2 * m + (blocks + 1) * rows]
    hidden = leaving.reshape(blocks + 1, width, rows)
    return Work(
        hidden,
        hidden,
        xhat.reshape(blocks + 1, width, rows),
        inverse.reshape(blocks + 1, rows),
        active.reshape(blocks + 1, width, rows),
        hidden[:0],
        hidden[:0],
        hidden[:0],
        logits.reshape(classes, rows)[:0],
        logits.reshape(classes, rows),
        total.reshape(classes, rows),
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
def without_seeds(seeds: Seeds) -> Seeds:
    """Return the slots of a column, in which nothing grows."""
    return Seeds(seeds.q, seeds.formula, seeds.hidden, seeds.blend, seeds.alpha, np.zeros_like(seeds.mode))


@inner
def columns_up_to(columns: Columns, mode: int) -> int:
    """Return the set of columns that take part in a pass of this mode, as bits."""
    bits = 0
    for c in range(columns.mode.size):
        if ABSENT < columns.mode[c] <= mode:
            bits |= 1 << c
    return bits


@inner
def run_columns(columns: Columns, bits: int, bare: Seeds, x: Array, classes: int) -> None:
    """Compute the logits of each column in `bits` for x [F, B], and keep what the backward pass needs."""
    features, rows = x.shape
    for c in range(columns.mode.size):
        if bits >> c & 1:
            work = column_work(columns, c, bare.mode.size, classes, rows)
            enter(columns.q[c], x, work.leaving[0])
            mode, slot = whole_pass()
            forward(columns.q[c], bare, mode, slot, work, features)


@inner
def add_columns(columns: Columns, bits: int, blocks: int, work: Work) -> None:
    """Compute `work.total`: the host's logits plus those of each column in `bits`, scaled by its alpha."""
    classes, rows = work.logits.shape
    for k in range(classes):
        row, out = work.logits[k], work.total[k]
        for i in range(rows):
            out[i] = row[i]
    for c in range(columns.mode.size if bits else 0):
        if bits >> c & 1:
            logits = column_work(columns, c, blocks, classes, rows).logits
            alpha = logits.dtype.type(columns.alpha[c])
            for k in range(classes):
                row, out = logits[k], work.total[k]
                for i in range(rows):
                    out[i] += alpha * row[i]


@inner
def columns_back(columns: Columns, mode: int, bare: Seeds, x: Array, dlogits: Array, dq: Array) -> None:
    """Write the parameter gradients of the columns of this mode to `dq [C, Q]`, given those of the summed logits."""
    classes, rows = dlogits.shape
    for c in range(columns.mode.size):
        if columns.mode[c] == mode:
            work = column_work(columns, c, bare.mode.size, classes, rows)
            alpha = dlogits.dtype.type(columns.alpha[c])
            for k in range(classes):
                row, out = dlogits[k], work.total[k]
                for i in range(rows):
                    out[i] = alpha * row[i]
            host, slot = whole_pass()
            backward(columns.q[c], bare, host, slot, x, work, dq[c], bare.q, columns.alpha[:0])
