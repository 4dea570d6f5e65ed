"""`evaluate`: evaluates a host with several subsets of its seeds and columns on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.kernels.columns import Columns, add_columns, run_columns, without_seeds
from actors.env.kernels.epoch import gather
from actors.env.kernels.jit import inner, kernel
from actors.env.kernels.layers import exponential
from actors.env.kernels.network import Seeds, Work, block_offset, enter, grow, head, run_block

Array = NDArray[Any]


@kernel
def evaluate(
    data: Array,
    labels: Array,
    p: Array,
    seeds: Seeds,
    columns: Columns,
    work: Work,
    subsets: Array,
    correct: Array,
    losses: Array,
) -> None:
    """Compute, for each of `subsets` (bit s for slot s), the number of `correct` rows and the summed cross-entropy.

    Subsets share the work up to the first slot in which they differ: after slot s of the stream there is one variant
    for each distinct set of slots up to s. Columns are run once, and each subset adds the logits of its own.
    """
    slots, features, size = seeds.mode.size, data.shape[1], work.logits.shape[1]
    bare = without_seeds(seeds)
    used = 0
    for n in range(subsets.size):
        used |= subsets[n]
    width = work.leaving.shape[1]
    x = np.zeros((features, size), p.dtype)
    index = np.zeros(size, np.int64)
    correct[:] = 0
    losses[:] = 0.0
    sets = np.zeros((slots + 1, subsets.size), np.int64)
    counts = np.ones(slots + 1, np.int64)
    for s in range(slots):
        counts[s + 1] = 0
        for n in range(subsets.size):
            prefix = subsets[n] & ((1 << (s + 1)) - 1)
            if not (sets[s + 1, : counts[s + 1]] == prefix).any():
                sets[s + 1, counts[s + 1]] = prefix
                counts[s + 1] += 1
    variants = np.empty((2, subsets.size, width, size), p.dtype)
    entering = np.empty((subsets.size, width, size), p.dtype)
    for start in range(0, data.shape[0], size):
        rows = min(size, data.shape[0] - start)
        for i in range(rows):
            index[i] = start + i
        gather(data, index, x)
        run_columns(columns, used >> slots, bare, x, work.logits.shape[0])
        enter(p, x, variants[0, 0])
        for s in range(slots):
            before, after = variants[s % 2], variants[(s + 1) % 2]
            offset = block_offset(features, width, s)
            grown = used >> s & 1
            for v in range(counts[s]):
                out = entering[v] if grown else after[v]
                run_block(p, offset, before[v], work.xhat[0], work.inverse[0], work.active[0], out)
            for n in range(counts[s + 1] if grown else 0):
                subset = sets[s + 1, n]
                parent = 0
                while sets[s, parent] != subset & ((1 << s) - 1):
                    parent += 1
                if subset >> s & 1:
                    grow(seeds, s, work, entering[parent], after[n])
                else:
                    after[n][:] = entering[parent]
        offset = block_offset(features, width, slots)
        for v in range(counts[slots]):
            last = variants[slots % 2, v]
            head(p, offset, last, work.xhat[0], work.inverse[0], work.active[0], work.logits)
            for n in range(subsets.size):
                if subsets[n] & ((1 << slots) - 1) == sets[slots, v]:
                    beside = subsets[n] >> slots
                    if beside:
                        add_columns(columns, beside, slots, work)
                    summed = work.total if beside else work.logits
                    right, total = _score(summed, labels[start : start + rows])
                    correct[n] += right
                    losses[n] += total


@inner
def _score(logits: Array, y: Array) -> tuple[int, float]:
    """Return the number of correct rows and the summed cross-entropy of logits [C, B]."""
    right, total = 0, 0.0
    for i in range(y.size):
        best = 0
        for c in range(1, logits.shape[0]):
            if logits[c, i] > logits[best, i]:
                best = c
        right += best == y[i]
        summed = logits.dtype.type(0)
        for c in range(logits.shape[0]):
            summed += exponential(logits[c, i] - logits[best, i])
        total += math.log(summed) - (logits[y[i], i] - logits[best, i])
    return right, total
