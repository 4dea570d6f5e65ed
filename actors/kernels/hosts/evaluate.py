"""`evaluate`: evaluates a host with several subsets of its seeds and columns on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from actors.kernels.cross_entropy import highest_and_sum, log_losses
from actors.kernels.decorators import Array, kernel
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.hosts.columns import Columns, mix_columns, run_columns, without_seeds
from actors.kernels.hosts.layers import copy
from actors.kernels.hosts.network import Seeds, Work, block_offset, enter, grow, head, run_block


class Variants(NamedTuple):
    """Subsets that share the work up to the first slot in which they differ.

    After slot s of the stream there is one variant for each distinct set of slots up to s.
    """

    sets: Array  # [S + 1, N] as bits, after each slot
    counts: Array  # [S + 1] how many there are
    hidden: Array  # [2, N, W, B]
    entering: Array  # [N, W, B]


@kernel
def evaluate(
    x: Array, labels: Array, p: Array, seeds: Seeds, columns: Columns, work: Work, subsets: Array, correct: Array,
    losses: Array,
) -> None:  # fmt: skip
    """Compute, for each of `subsets` (bit s for slot s), the number of `correct` rows and the summed cross-entropy.

    The rows of data are the first columns of x [F, N], where N is a multiple of the length of rows in `work`. Columns
    of the host are run once, and each subset mixes the logits of its own.
    """
    slots, width, length = seeds.mode.size, work.leaving.shape[1], work.logits.shape[1]
    variants = Variants(
        np.zeros((slots + 1, subsets.size), np.int64),
        np.ones(slots + 1, np.int64),
        np.empty((2, subsets.size, width, length), p.dtype),
        np.empty((subsets.size, width, length), p.dtype),
    )
    absent = np.zeros_like(seeds.mode)
    evaluate_variants(x, labels, p, seeds, columns, work, subsets, correct, losses, variants, absent)


@inner
def evaluate_variants(
    x: Array, labels: Array, p: Array, seeds: Seeds, columns: Columns, work: Work, subsets: Array, correct: Array,
    losses: Array, variants: Variants, absent: Array,
) -> None:  # fmt: skip
    """Evaluate, see `evaluate`; `absent [S]` is 0."""
    slots, features, width = seeds.mode.size, x.shape[0], work.leaving.shape[1]
    classes, length = work.logits.shape
    bare = without_seeds(seeds, absent)
    sets, counts, hidden, entering = variants
    used = 0
    for n in range(subsets.size):
        used |= subsets[n]
        correct[n], losses[n] = 0, 0.0
    for s in range(slots):
        counts[s + 1] = 0
        for n in range(subsets.size):
            prefix, known = subsets[n] & ((1 << (s + 1)) - 1), 0
            while known < counts[s + 1] and sets[s + 1, known] != prefix:
                known += 1
            if known == counts[s + 1]:
                sets[s + 1, known] = prefix
                counts[s + 1] += 1
    for start in range(0, labels.size, length):
        y = labels[start : min(start + length, labels.size)]
        run_columns(columns, used >> slots, bare, x, start, classes, length)
        enter(p, x, start, hidden[0, 0])
        for s in range(slots):
            before, after = hidden[s % 2], hidden[(s + 1) % 2]
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
                    copy(entering[parent], after[n])
        offset = block_offset(features, width, slots)
        for v in range(counts[slots]):
            last = hidden[slots % 2, v]
            head(p, offset, last, work.xhat[0], work.inverse[0], work.active[0], work.logits)
            for n in range(subsets.size):
                if subsets[n] & ((1 << slots) - 1) == sets[slots, v]:
                    beside = subsets[n] >> slots
                    if beside:
                        mix_columns(columns, beside, slots, work)
                    summed = work.total if beside else work.logits
                    highest, mass = work.by_row
                    highest_and_sum(summed, highest, mass)
                    losses[n] += log_losses(summed, y, highest, mass)
                    correct[n] += count_correct(summed, y, highest)


@inner
def count_correct(logits: Array, y: Array, highest: Array) -> int:
    """Return for how many rows of y the first of the highest logits [C, B] is that of the label."""
    result = 0
    for i in range(y.size):
        if logits[y[i], i] == highest[i]:
            first = 0
            while logits[first, i] != highest[i]:
                first += 1
            result += first == y[i]
    return result
