"""`ParamBank`: many small networks of one padded shape as rows of one matrix; `ColumnBank`: one of whole columns; and
`RowOptimizer`, their AdamW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from actors.blueprints.blueprint import Param
from actors.env.fleet_networks import WEIGHT_DECAY, NetworkSettings
from actors.env.hosts.host import Host
from actors.layers.batch_norm import fresh
from actors.layers.layer_norm import Units

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class ParamBank:
    """Parameter vectors `[rows, size]`, with AdamW moments, a step counter and running statistics for each row."""

    def __init__(
        self, shapes: dict[str, Param], norms: Mapping[str, int], rows: int, settings: NetworkSettings
    ) -> None:
        """`norms` are the channels of each BatchNorm by name."""
        self.shapes, dtype, device = shapes, settings.dtype, settings.device
        self.running = fresh(norms, rows, dtype=dtype, device=device)
        self.size = sum(p.size for p in shapes.values())
        self.params = torch.zeros(rows, self.size, dtype=dtype, device=device)
        self.first_moment = torch.zeros_like(self.params)
        self.second_moment = torch.zeros_like(self.params)
        self.steps = torch.zeros(rows, dtype=torch.long, device=device)
        self.statistics = [t for moments in self.running.values() for t in moments]
        self.optimized = self.params, self.first_moment, self.second_moment, self.steps
        t = np.arange(settings.max_steps + 1, dtype=np.float64)
        self.correction1 = torch.tensor(1.0 - BETA1**t, dtype=dtype, device=device)  # by number of steps
        self.correction2 = torch.tensor(np.sqrt(1.0 - BETA2**t), dtype=dtype, device=device)

    def draw(self, row: int, shapes: dict[str, Param], rng: np.random.Generator) -> None:
        """Draw the parameters of a row and clear the rest; `shapes` are those before padding."""
        self.clear_moments(slice(row, row + 1))
        for mean, var in self.running.values():
            mean[row], var[row] = 0.0, 1.0
        drawn = torch.zeros(1, self.size, dtype=self.params.dtype)  # on the CPU: one copy to a GPU, not one a parameter
        views = self.views(drawn)
        for name, p in shapes.items():
            views[name][0][tuple(slice(n) for n in p.shape)] = torch.from_numpy(p.draw(rng))
        self.params[row] = drawn[0]

    def clear_moments(self, rows: slice) -> None:
        """Reset the moments and step counters of some rows."""
        for t in (self.first_moment, self.second_moment, self.steps):
            t[rows] = 0.0

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return `flat [n, size]` as named parameters `[n, *shape]` that share its memory."""
        views, start = {}, 0
        for name, p in self.shapes.items():
            views[name] = flat[:, start : start + p.size].view(flat.shape[0], *p.shape)
            start += p.size
        return views

    def leaves(self, flat: Tensor) -> dict[str, Tensor]:
        """Return `views` as autograd leaves."""
        return {name: t.detach().requires_grad_() for name, t in self.views(flat).items()}


class ColumnBank(ParamBank):
    """Columns padded to the shape of `host`, with their real widths."""

    def __init__(self, host: Host, rows: int, settings: NetworkSettings) -> None:
        super().__init__(host.shapes(), host.norms(), rows, settings)
        self.host = host
        self._widths = torch.zeros_like(self.steps)

    def draw(self, row: int, shapes: dict[str, Param], rng: np.random.Generator) -> None:
        super().draw(row, shapes, rng)
        self._widths[row] = shapes["out.w"].shape[0]

    def units(self, rows: Tensor) -> Units | None:
        """Return the real units of some rows; None for CNNs, whose padded channels stay 0 anyway."""
        dims, dtype = self.host.family.dims, self.params.dtype
        return None if dims else Units.of_widths(self._widths[rows], self.host.width, dtype)


class RowOptimizer:
    """AdamW (Loshchilov & Hutter, 2019) for some rows of a bank, which are copies until `store`; or for all, in place.

    `rows` are indices; None means all rows. `lr [n]` are their learning rates, in float64.
    """

    def __init__(self, bank: ParamBank, rows: Tensor | None, lr: Tensor) -> None:
        self.bank, self.rows = bank, rows
        self.lr, self._kept = (t[:, None].to(bank.params) for t in (lr, 1.0 - lr * WEIGHT_DECAY))
        self.params, self.first, self.second, self.steps = (t if rows is None else t[rows] for t in bank.optimized)

    def store(self) -> None:
        """Write the rows back to the bank."""
        if self.rows is not None:
            copies = self.params, self.first, self.second, self.steps
            for t, copy in zip(self.bank.optimized, copies, strict=True):
                t[self.rows] = copy

    def saved(self, rows: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Copy everything that steps change of some of the rows, as (tensor, its rows, values)."""
        held = rows if self.rows is None else self.rows[rows]
        own = [(t, rows) for t in (self.params, self.first, self.second, self.steps)]
        return [(t, at, t[at]) for t, at in (*own, *((t, held) for t in self.bank.statistics))]

    def step(self, grad: Tensor) -> None:
        """Take one step with gradients `[n, size]`, each row with its own step counter."""
        self.steps += 1
        # Looked up: the last bit of a power depends on the tensor's length. Idle rows step beyond the table's end.
        known = self.steps.clamp(max=len(self.bank.correction1) - 1)
        correction1, correction2 = (table[known, None] for table in (self.bank.correction1, self.bank.correction2))
        self.params.mul_(self._kept)
        self.first.lerp_(grad, 1.0 - BETA1)
        self.second.mul_(BETA2).addcmul_(grad, grad, value=1.0 - BETA2)
        denominator = self.second.sqrt().div_(correction2).add_(EPS)
        self.params.sub_((self.first / denominator).mul_(self.lr / correction1))


def flat_gradients(grads: Sequence[Tensor]) -> Tensor:
    """Concatenate the gradients `[n, *shape]` of a bank's parameters, in its order, to `[n, size]`."""
    return torch.cat([g.flatten(1) for g in grads], 1)
