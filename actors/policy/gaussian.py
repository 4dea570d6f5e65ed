"""Diagonal Gaussian heads for continuous actions: sampling, log-probs and entropies, per dimension.

u ~ N(mean, std^2) is rounded to a cell (see `actors.types.continuous`), whose log-prob is the log-density of u plus the
log of the cell's width. Squashing by tanh moves a cell with its probability, so the change of variables leaves the
cell's log-prob as it is; the entropy of the squashed action contains the log-determinant.
"""

from __future__ import annotations

from math import e, log, pi, sqrt

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actors.config import PolicyConfig
from actors.types.actions import ActionSpec
from actors.types.continuous import CELL_WIDTH, CELLS, LARGEST

LOG_STD_RANGE = (-5.0, 2.0)
TAIL = 1e-12  # probability beyond which noise is clamped: samples stay within 7 standard deviations
QUADRATURE = np.stack(np.polynomial.hermite.hermgauss(32))
"""`[2, 32]`, the points and weights of `entropy`."""


class GaussianHeads(nn.Module):
    """The log standard deviations of all continuous heads: parameters, or (`policy.log_std: state`) a linear function
    of the core's output. The means are outputs of `FactoredHeads`."""

    def __init__(self, spec: ActionSpec, config: PolicyConfig) -> None:
        super().__init__()
        self.by_state = config.log_std == "state"
        self.bias = nn.Parameter(torch.full((spec.num_continuous,), config.initial_log_std))
        if self.by_state:
            self.weight = nn.Parameter(torch.zeros(spec.num_continuous, config.hidden_size))

    def log_std(self, core: Tensor) -> Tensor:
        """Return `[N, C]` from the core's normalized output `[N, hidden]`."""
        raw = F.linear(core, self.weight, self.bias) if self.by_state else self.bias.expand(core.shape[0], -1)
        return raw.float().clamp(*LOG_STD_RANGE)


def sample(mean: Tensor, log_std: Tensor, noise: Tensor, deterministic: bool | Tensor) -> tuple[Tensor, Tensor]:
    """Return the cells `[N, C]` of samples determined by uniform `noise [N, C]`, or of the means, and their log-probs.

    `deterministic` is a bool, or a tensor that broadcasts to `[N, C]`.
    """
    u = mean.double()
    if deterministic is not True:
        uniform = noise.double().clamp(TAIL, 1.0 - TAIL)
        drawn = u + log_std.double().exp() * sqrt(2.0) * torch.erfinv(2.0 * uniform - 1.0)
        u = torch.where(deterministic, u, drawn) if isinstance(deterministic, Tensor) else drawn
    cells = ((u + LARGEST) / CELL_WIDTH).round().clamp(0, CELLS - 1).long()
    return cells, log_prob(cells, mean, log_std)


def log_prob(cells: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-probs `[N, C]` of cells; all arguments are `[N, C]`."""
    u = (cells.double() * CELL_WIDTH - LARGEST).to(mean.dtype)
    z = (u - mean) * (-log_std).exp()
    return -0.5 * z.square() - log_std - 0.5 * log(2.0 * pi) + log(CELL_WIDTH)


def entropy(mean: Tensor, log_std: Tensor, squashed: Tensor, quadrature: Tensor) -> Tensor:
    """Return differential entropies `[N, C]` in nats, of u, or of tanh(u) where `squashed [C]`.

    That of tanh(u) is that of u plus E[log(1 - tanh(u)^2)], by Gauss-Hermite `quadrature [2, 32]`.
    """
    gaussian = log_std + 0.5 * log(2.0 * pi * e)
    points, weights = quadrature.to(mean.dtype)
    u = mean.unsqueeze(-1) + sqrt(2.0) * log_std.exp().unsqueeze(-1) * points
    log_det = 2.0 * (log(2.0) - u - F.softplus(-2.0 * u))
    return gaussian + torch.where(squashed, (log_det * weights).sum(-1) / sqrt(pi), 0.0)
