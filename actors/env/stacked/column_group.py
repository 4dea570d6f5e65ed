"""`ColumnGroup`: the columns of one blueprint and slot that one pass adds to the logits, across environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from actors.blueprints.blueprint import Params
from actors.env.stacked.column_bank import ColumnBank
from actors.env.stacked.layout import StackLayout
from actors.layers.batch_norm import Moments, Normalize, row_statistics
from actors.layers.layer_norm import Units


@dataclass(frozen=True, eq=False)
class ColumnGroup:
    """The columns of n environments, of one bank, slot and mode, which are computed together.

    A single one is computed twice, since a batch of one rounds differently (see `BlueprintGroup.grow`).
    """

    slot: int
    bank: ColumnBank
    envs: Tensor  # [n], the environments that have one
    rows: Tensor  # [n], their rows in the bank
    inputs: Tensor  # [max(n, 2)], the environments whose inputs are read
    units: Units | None  # of those
    alpha: Tensor  # [n, 1, 1]
    params: Callable[[], Params]  # returns the current parameters `[n, ...]`
    layout: StackLayout

    def logits(self, x: Tensor, normalize: Normalize | None) -> Tensor:
        """Return alpha times the logits of these columns, `[n, B, classes]`; `x` holds the rows of all environments."""
        params, count = self.params(), len(self.inputs)
        if len(self.envs) < count:
            params = {name: t.expand(count, *t.shape[1:]) for name, t in params.items()}
        here = self.layout.select(x, self.inputs)
        out = self.bank.host.forward(params, here, lambda s, h: h, self.units, normalize)
        return self.alpha * out[: len(self.envs)]

    def updating(self) -> Normalize:
        """Normalize by the statistics of the batch, and update the running ones."""
        return row_statistics(self.bank.running, self.rows)

    def running(self) -> dict[str, Moments]:
        """Return the running statistics of `inputs`."""
        rows = self.rows.expand(len(self.inputs))
        return {name: Moments(mean[rows], var[rows]) for name, (mean, var) in self.bank.running.items()}


def added_logits(groups: Sequence[ColumnGroup], x: Tensor, num_envs: int) -> Tensor | None:
    """Return what columns add to the logits of every environment, `[E, B, classes]`, in training; None if nothing."""
    total: Tensor | None = None
    for group in groups:
        logits = group.logits(x, group.updating())
        total = logits.new_zeros(num_envs, *logits.shape[1:]) if total is None else total
        total = total.index_add(0, group.envs, logits)
    return total
