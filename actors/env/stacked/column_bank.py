"""`ColumnBank`: the columns of one blueprint, as rows of one matrix."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actors.blueprints.blueprint import Param
from actors.env.hosts.host import Host
from actors.env.stacked.param_bank import ParamBank
from actors.layers.batch_norm import Moments
from actors.layers.layer_norm import Units


class ColumnBank(ParamBank):
    """Columns padded to the shape of `host`, with the running statistics of their norms and their real widths."""

    def __init__(self, host: Host, rows: int, max_steps: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(host.shapes(), rows, max_steps, dtype, device)
        self.host = host
        norms = host.norms().items()
        self.running = {name: Moments.fresh(rows, channels, dtype=dtype, device=device) for name, channels in norms}
        self._units: Units | None = None
        if not host.family.dims:
            mask = torch.zeros(rows, 1, host.width, dtype=dtype, device=device)
            self._units = Units(mask, mask.mT.clone())

    def draw(self, row: int, shapes: dict[str, Param], rng: np.random.Generator) -> None:
        """Draw the parameters of a row, clear its moments and running statistics, and note its width."""
        super().draw(row, shapes, rng)
        for mean, var in self.running.values():
            mean[row], var[row] = 0.0, 1.0
        if self._units is not None:
            width = shapes["out.w"].shape[0]
            real = (torch.arange(self.host.width, device=self.params.device) < width).to(self.params.dtype)
            self._units.mask[row, 0], self._units.share[row, :, 0] = real, real / width

    def units(self, rows: Tensor) -> Units | None:
        """Return the real units of some rows; None for CNNs, whose padded channels stay 0 anyway."""
        return None if self._units is None else self._units.rows(rows)
