"""`ColumnGroup`: the columns of one blueprint and slot that one pass mixes with the logits, across environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from actors.blueprints.blueprint import Params
from actors.env.stacked.layout import StackLayout
from actors.env.stacked.param_bank import ColumnBank
from actors.layers.batch_norm import Moments, Normalize
from actors.layers.layer_norm import Units


@dataclass(frozen=True, eq=False)
class ColumnGroup:
    """The columns of n environments, of one bank, slot, mode and turn, which are computed together.

    A single one is computed twice, since a batch of one rounds differently (see `BlueprintGroup.grow`).
    """

    slot: int
    turn: int
    bank: ColumnBank
    envs: Tensor  # [n], the environments that have one
    rows: Tensor  # [n], their rows in the bank
    inputs: Tensor  # [max(n, 2)], the environments whose inputs are read
    units: Units | None  # of those
    alpha: Tensor  # [n, 1, 1]
    params: Callable[[], Params]  # returns the current parameters `[n, ...]`
    layout: StackLayout

    def logits(self, x: Tensor, normalize: Normalize | None) -> Tensor:
        """Return the logits of these columns, `[n, B, classes]`; `x` holds the rows of all environments."""
        params, count = self.params(), len(self.inputs)
        if len(self.envs) < count:
            params = {name: t.expand(count, *t.shape[1:]) for name, t in params.items()}
        here = self.layout.select(x, self.inputs)
        out = self.bank.host.forward(params, here, lambda s, h: h, self.units, normalize)
        return out[: len(self.envs)]

    def mixed(self, model: Tensor, logits: Tensor) -> Tensor:
        """Return the logits `[E, B, classes]` of the models, with those of these columns mixed in."""
        return model.index_copy(0, self.envs, (1.0 - self.alpha) * model[self.envs] + self.alpha * logits)

    def running(self) -> dict[str, Moments]:
        """Return the running statistics of `inputs`."""
        rows = self.rows.expand(len(self.inputs))
        return {name: Moments(mean[rows], var[rows]) for name, (mean, var) in self.bank.running.items()}


Outputs = Sequence[tuple[ColumnGroup, Tensor]]
"""Groups of columns in the order of their turns, with their logits."""


def mixed_logits(model: Tensor, columns: Outputs) -> Tensor:
    """Return the logits of the models `[E, B, classes]` with those of columns mixed in, one turn after the other."""
    for group, logits in columns:
        model = group.mixed(model, logits)
    return model
