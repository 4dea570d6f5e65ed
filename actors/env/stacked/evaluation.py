"""`StackedEvaluation`: validation and ablations of E networks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.stacked.column_group import ColumnGroup
from actors.env.stacked.parameters import StackedParameters
from actors.env.stacked.slot_plan import Plans, StackedSeed
from actors.kernels.cnn.layout import NARROW as ROWS_OF_KERNELS
from actors.layers.batch_norm import CALIBRATION_ROWS, Affine, Normalize, calibrated, calibrating, running_statistics
from actors.layers.convolution import with_kernels
from actors.slots.contributions import EvalResult, Subset


class SeedParts(NamedTuple):
    """Seeds of the environments, ready to be applied."""

    plans: Plans  # those in the stream
    columns: list[ColumnGroup]


Table = list[dict[Subset, EvalResult]]  # by environment
ROWS_AT_ONCE = 128
"""Rows are evaluated in blocks of this size, a multiple of the vector width of transcendental functions. The number of
rows of the fleet's largest task must not change how the others round."""


class StackedEvaluation:
    """Evaluates the networks of a stack on one split of every environment's task.

    `x [E, N, ...]`, `y [E, N]` are padded rows, `valid [E, N]` marks the real ones; BatchNorm is calibrated on
    `calibration [E, CALIBRATION_ROWS, ...]`.
    """

    def __init__(self, stack: StackedParameters, x: Tensor, y: Tensor, valid: Tensor, calibration: Tensor) -> None:
        self.stack, self.layout = stack, stack.layout
        x, calibration = (t.transpose(0, 1).contiguous() if self.layout.env_dim else t for t in (x, calibration))
        self.calibration = self.layout.arranged(calibration)
        # Rows are independent: a block of them at a time keeps the tensors near the cache.
        blocks = torch.split(x, ROWS_AT_ONCE, self.layout.row_dim)
        labelled = zip(torch.split(y, ROWS_AT_ONCE, 1), torch.split(valid, ROWS_AT_ONCE, 1), strict=True)
        self.blocks = [
            (self.layout.arranged(self._without_padding(block, counted)), labels, counted)
            for block, (labels, counted) in zip(blocks, labelled, strict=True)
        ]
        self.count = valid.sum(1, keepdim=True).to(torch.float64)

    def _without_padding(self, block: Tensor, valid: Tensor) -> Tensor:
        """Return a block of rows without those at its end that no environment has.

        Only for kernels, which compute a row alike however many there are.
        """
        if not (self.layout.dims and with_kernels(block, self.layout.dims)):
            return block
        used = int(valid.any(0).sum())
        return block[: -(-used // ROWS_OF_KERNELS) * ROWS_OF_KERNELS]

    @torch.no_grad()
    def __call__(
        self, seeds: Sequence[StackedSeed], subsets: Sequence[Sequence[Subset]]
    ) -> list[tuple[EvalResult, dict[Subset, EvalResult]]]:
        """Return each environment's result with its blended seeds, and with each of its `subsets` of slots on.

        The first of `subsets` must be the blended seeds. With BatchNorm, the first result uses running statistics
        (`ReferenceNetwork.evaluate`), those of subsets use recalibrated ones (`ReferenceNetwork.ablate`).
        """
        n = self.stack
        if not n.running:
            table = self._table(self._parts(seeds), subsets, None, [])
            return [(results[sets[0]], results) for sets, results in zip(subsets, table, strict=True)]
        blended = self._parts([seed for seed in seeds if not seed.training])
        everything = frozenset(range(n.total_slots))
        of_columns = [running_statistics(group.running()) for group in blended.columns]
        validation = self._table(blended, [[everything]] * n.num_envs, running_statistics(n.running), of_columns)
        due = [list(sets) if len(sets) > 1 else [] for sets in subsets]
        table = self._recalibrated(self._parts(seeds), due) if any(due) else [{} for _ in due]
        return [(v[everything], results) for v, results in zip(validation, table, strict=True)]

    def _parts(self, seeds: Sequence[StackedSeed]) -> SeedParts:
        n = self.stack
        return SeedParts(n.plans(seeds, range(n.num_envs), n.constant, n.constant_gates), n.columns(seeds, n.constant))

    def _recalibrated(self, parts: SeedParts, subsets: Sequence[Sequence[Subset]]) -> Table:
        """Evaluate the subsets of each environment with BatchNorm recalibrated for each.

        A column is recalibrated once, since it does not depend on the other seeds.
        """
        targets = _distinct(subsets)
        affines: dict[str, Affine] = {}
        self._host_logits(parts.plans, targets, self.calibration, calibrating(affines, CALIBRATION_ROWS))
        of_columns = []
        for group in parts.columns:
            by_norm: dict[str, Affine] = {}
            group.logits(self.calibration, calibrating(by_norm, CALIBRATION_ROWS))
            of_columns.append(calibrated(by_norm, ROWS_AT_ONCE))
        return self._table(parts, subsets, calibrated(affines, ROWS_AT_ONCE), of_columns)

    def _table(
        self,
        parts: SeedParts,
        subsets: Sequence[Sequence[Subset]],
        normalize: Normalize | None,
        of_columns: Sequence[Normalize],
    ) -> Table:
        """Evaluate the subsets of each environment; `of_columns` are the norms of each group of columns, if any."""
        n = self.stack
        targets = _distinct(subsets)
        # Sums are accumulated block by block, so that their bits do not depend on the number of blocks.
        correct: Tensor = torch.zeros((), dtype=torch.long, device=n.device)
        total: Tensor = torch.zeros((), dtype=n.dtype, device=n.device)
        for block, y, valid in self.blocks:
            logits = self._host_logits(parts.plans, targets, block, normalize)
            for i, group in enumerate(parts.columns):
                _mix_column(logits, group, targets, block, of_columns[i] if of_columns else None)
            logits = F.pad(logits, (0, 0, 0, y.shape[1] - logits.shape[2]))
            logits = logits.masked_fill(n.no_class[:, None], -torch.inf)
            labels, counted = y[:, None].expand(-1, len(targets), -1), valid[:, None]
            loss = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none").masked_fill(~counted, 0.0)
            correct = correct + ((logits.argmax(-1) == labels) & counted).sum(-1)
            total = total + loss.sum(-1)
        accuracy = (100.0 * correct / self.count).tolist()
        mean_loss = (total / self.count.to(n.dtype)).tolist()
        index = {subset: k for k, subset in enumerate(targets)}
        return [
            {subset: EvalResult(accuracy[e][index[subset]], mean_loss[e][index[subset]]) for subset in sets}
            for e, sets in enumerate(subsets)
        ]

    def _host_logits(self, plans: Plans, targets: list[Subset], x: Tensor, normalize: Normalize | None) -> Tensor:
        """Return logits `[E, targets, rows, classes]` without those of columns.

        Targets share the work up to the first slot in which they differ: after slot s, the rows hold one variant for
        each distinct set of slots up to s. Targets that differ in columns only are one variant.
        """
        n, layout = self.stack, self.layout
        variants: list[Subset] = [frozenset()]

        def slot(s: int, h: Tensor) -> Tensor:
            nonlocal variants
            previous, reached = variants, {t & frozenset(range(s + 1)) for t in targets}
            off = [i for i, v in enumerate(previous) if v in reached]
            on = [i for i, v in enumerate(previous) if v | {s} in reached]
            variants = [previous[i] for i in off] + [previous[i] | {s} for i in on]
            parts = []
            if off:
                parts.append(layout.select_variants(h, len(previous), off))
            if on:
                switched = layout.select_variants(h, len(previous), on)
                parts.append(plans[s](switched) if s in plans else switched)
            return parts[0] if len(parts) == 1 else layout.joined(parts)

        logits = n.host.forward(n.hosts.views(n.hosts.params), x, slot, n.units, normalize)
        logits = logits.view(n.num_envs, len(variants), -1, logits.shape[-1])
        in_stream = frozenset(range(n.host.slots))
        return logits[:, torch.tensor([variants.index(t & in_stream) for t in targets], device=n.device)]


def _distinct(subsets: Sequence[Sequence[Subset]]) -> list[Subset]:
    return sorted({subset for sets in subsets for subset in sets}, key=sorted)


def _mix_column(
    logits: Tensor, group: ColumnGroup, targets: Sequence[Subset], x: Tensor, normalize: Normalize | None
) -> None:
    """Mix the logits of columns in place with those `[E, targets, rows, classes]` of the targets that have them on."""
    on = [k for k, target in enumerate(targets) if group.slot in target]
    if on:
        where, alpha = (group.envs[:, None], torch.tensor(on, device=logits.device)), group.alpha[:, None]
        logits[where] = (1.0 - alpha) * logits[where] + alpha * group.logits(x, normalize)[:, None]
