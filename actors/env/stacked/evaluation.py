"""`StackedEvaluation`: validation and ablations of E networks in one or two passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.layers.batch_norm import (
    CALIBRATION_ROWS,
    Affine,
    Normalize,
    calibrated,
    calibrating,
    running_statistics,
)
from actors.env.slots.contributions import Subset
from actors.env.slots.growth_state import EvalResult
from actors.env.stacked.parameters import StackedParameters
from actors.env.stacked.slot_plan import Plans, StackedSeed

Table = list[dict[Subset, EvalResult]]  # by environment
ROWS_AT_ONCE = 128
"""Whole parts alone, in multiples of the lanes that transcendental functions work on: how many rows the largest task of
a fleet has must not decide how a kernel computes its neighbours'."""


class StackedEvaluation:
    """Every environment's validation rows and, for hosts with BatchNorm, its calibration rows, laid out."""

    def __init__(self, stack: StackedParameters, x: Tensor, y: Tensor, valid: Tensor, calibration: Tensor) -> None:
        self.stack, self.layout = stack, stack.layout
        self.y, self.valid = y, valid
        self.x, self.calibration = (
            t.transpose(0, 1).contiguous() if self.layout.env_dim else t for t in (x, calibration)
        )
        self.count = valid.sum(1, keepdim=True).to(torch.float64)

    @torch.no_grad()
    def __call__(
        self, seeds: Sequence[StackedSeed], wanted: Sequence[Sequence[Subset]]
    ) -> list[tuple[EvalResult, dict[Subset, EvalResult]]]:
        """(the present configuration, wanted ones as comparable to one another) by environment.

        The present is the first of the wanted. With BatchNorm it is read by running statistics, and those that are
        wanted by statistics of their own (see `ReferenceNetwork.ablate`).
        """
        n = self.stack
        plans = n.plans(seeds, range(n.num_envs), n.constant, n.constant_gates)
        if not n.running:
            table = self._table(plans, wanted, None)
            return [(m[subsets[0]], m) for subsets, m in zip(wanted, table, strict=True)]
        blended = [seed for seed in seeds if not seed.learning]
        now = n.plans(blended, range(n.num_envs), n.constant, n.constant_gates)
        everything = frozenset(range(n.host.slots))
        present = self._table(now, [[everything]] * n.num_envs, running_statistics(n.running))
        due = [list(subsets) if len(subsets) > 1 else [] for subsets in wanted]
        table = self._table(plans, due, None) if any(due) else [{} for _ in due]
        return [(p[everything], m) for p, m in zip(present, table, strict=True)]

    def _table(self, plans: Plans, wanted: Sequence[Sequence[Subset]], normalize: Normalize | None) -> Table:
        """Accuracy and loss of each environment's wanted subsets; BatchNorm is calibrated for each unless told."""
        n = self.stack
        targets = sorted({subset for subsets in wanted for subset in subsets}, key=sorted)
        if normalize is None and n.running:
            found: dict[str, list[Affine]] = {}
            self._logits(plans, targets, self.calibration, calibrating(found, CALIBRATION_ROWS))
            normalize = calibrated(found, ROWS_AT_ONCE)
        # Rows know nothing of each other: a part of them at a time keeps the tensors near the cache.
        parts = torch.split(self.x, ROWS_AT_ONCE, self.layout.row_dim)
        labelled = zip(torch.split(self.y, ROWS_AT_ONCE, 1), torch.split(self.valid, ROWS_AT_ONCE, 1), strict=True)
        # Sums run from part to part, so that their bits do not depend on how many parts the fleet's largest task has.
        correct: Tensor = torch.zeros((), dtype=torch.long, device=n.device)
        total: Tensor = torch.zeros((), dtype=n.dtype, device=n.device)
        for part, (y, valid) in zip(parts, labelled, strict=True):
            logits = self._logits(plans, targets, part, normalize)
            labels, counted = y[:, None].expand(-1, len(targets), -1), valid[:, None]
            loss = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none").masked_fill(~counted, 0.0)
            correct = correct + ((logits.argmax(-1) == labels) & counted).sum(-1)
            total = total + loss.sum(-1)
        accuracy = (100.0 * correct / self.count).tolist()
        mean_loss = (total / self.count.to(n.dtype)).tolist()
        place = {subset: k for k, subset in enumerate(targets)}
        return [
            {subset: (accuracy[e][place[subset]], mean_loss[e][place[subset]]) for subset in subsets}
            for e, subsets in enumerate(wanted)
        ]

    def _logits(self, plans: Plans, targets: list[Subset], x: Tensor, normalize: Normalize | None) -> Tensor:
        """`[E, targets, rows, classes]`.

        Subsets share the work of the slots before the one at which they part: after slot s there is one variant for
        each different set of slots up to s.
        """
        n, layout = self.stack, self.layout
        variants: list[Subset] = [frozenset()]

        def slot(s: int, h: Tensor) -> Tensor:
            nonlocal variants
            before, variants = variants, sorted({t & frozenset(range(s + 1)) for t in targets}, key=sorted)
            source = layout.pick_variants(h, len(before), [before.index(v - {s}) for v in variants])
            on = [i for i, v in enumerate(variants) if s in v]
            if s not in plans or not on:
                return source
            switched = plans[s](layout.pick_variants(source, len(variants), on))
            index = torch.tensor(on, device=h.device)
            split = layout.variants(source, len(variants))
            merged = split.index_copy(layout.row_dim, index, layout.variants(switched, len(on)))
            return merged.flatten(layout.row_dim, layout.row_dim + 1)

        params = n.hosts.views(n.hosts.params)
        logits = n.host.forward(params, x, slot, n.units, normalize).masked_fill(n.no_class, -torch.inf)
        return logits.view(n.num_envs, len(targets), -1, logits.shape[-1])
