"""The distributions of the heads: masked categorical ones with probability floors, and Gaussian ones.

A continuous head is a diagonal Gaussian: u ~ N(mean, std^2) is rounded to a cell (see `actors.types.continuous`), whose
log-prob is the log-density of u plus the log of the cell's width. Squashing by tanh moves a cell with its probability,
so the change of variables leaves the cell's log-prob as it is; the entropy of the squashed action contains the
log-determinant.

Everything is drawn by inverse transform sampling, so the noise alone decides between a sample and the median, which
deterministic decisions take. A policy that decides once per epoch spreads its choice over many steps: where growing at
some time is all but certain, waiting may still be the most likely op of every single step, so that the most likely
actions never grow. Where the first op is WAIT, a deterministic policy therefore acts at the median of the time to act:
at the first step by which a sampling policy would more likely than not have acted. The other heads, whose choices are
mostly ordered (sizes and speeds), take their medians too.
"""

from __future__ import annotations

from math import e, log, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from actors.config.policy import MAX_FLOOR_MASS, PolicyConfig
from actors.types.actions import Op
from actors.types.continuous import CELL_WIDTH, CELLS, LARGEST
from actors.types.spaces import Spaces

GYMNASIUM_FLOOR_MASS = 0.01
TAIL = 1e-12  # probability beyond which noise is clamped: samples stay within 7 standard deviations
QUADRATURE = np.stack(np.polynomial.hermite.hermgauss(32))
"""`[2, 32]`, the points and weights of `gaussian_entropy`."""
DECISIONS = "median"
"""How deterministic policies decide: part of the identity of kept episodes."""
MEDIAN = 0.5
BELOW_ONE = 1.0 - 2.0**-24


def masked_log_probs(logits: Tensor, mask: Tensor, floor: float = 0.0, mass: float = MAX_FLOOR_MASS) -> Tensor:
    """Return log-probabilities `[..., n]`; illegal choices are exactly -inf.

    With floor f and k legal choices, pi' = (1 - k f) pi + f for each of them, where f is at most mass / k, so that all
    floors together take at most `mass`. Rows without legal choices are NaN; callers must check for them.
    """
    log_probs = logits.float().masked_fill(~mask, -torch.inf).log_softmax(-1)
    if floor == 0.0:
        return log_probs
    legal = mask.sum(-1, keepdim=True)
    share = floor_share(legal, floor, mass)
    mixed = torch.where(mask, (1.0 - legal * share) * log_probs.exp() + share, 1.0)
    return mixed.log().masked_fill(~mask, -torch.inf)


def floor_mass(config: PolicyConfig, spaces: Spaces) -> float:
    """Return the maximum total probability of one head's floors; `auto` depends on whether there are slots."""
    if config.floor_mass != "auto":
        return config.floor_mass
    return MAX_FLOOR_MASS if spaces.slots else GYMNASIUM_FLOOR_MASS


def floor_share(legal: Tensor, floor: float, mass: float) -> Tensor:
    """Return the probability floor of each choice, given the number of `legal` choices."""
    return (mass / legal).clamp(max=floor)


def normalized_entropy(log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return `[...]` entropy divided by the log of the number of legal choices: in [0, 1], and 0 for one choice."""
    safe = log_probs.masked_fill(~mask, 0.0)
    entropy = -(safe.exp() * safe).masked_fill(~mask, 0.0).sum(-1)
    return entropy / mask.sum(-1).clamp(min=2).log()


def choose(log_probs: Tensor, noise: Tensor, deterministic: bool | Tensor) -> Tensor:
    """Return `[...]` indices: the most likely choices, or samples determined by uniform `noise [...]` in [0, 1).

    Inverse transform sampling takes the first choice whose cumulative probability exceeds the noise, so choices of
    probability 0 are never taken. `deterministic` may be a tensor, for traced programs.
    """
    if deterministic is True:
        return log_probs.argmax(-1)
    cumulative = log_probs.exp().double().cumsum(-1)
    threshold = noise.double().unsqueeze(-1) * cumulative[..., -1:]
    drawn = (cumulative <= threshold).sum(-1).clamp(max=log_probs.shape[-1] - 1)
    return torch.where(deterministic, log_probs.argmax(-1), drawn) if isinstance(deterministic, Tensor) else drawn


class HeadScorer(nn.Module):
    """Pads heads of unequal size to `[N, H, W]`, with W the size of the largest, and scores them together: one large
    operation is faster than many small ones, whose call overhead exceeds their arithmetic."""

    places: Tensor  # [A] of each choice in [H * W]

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = len(sizes), max(sizes)
        inside = np.arange(max(sizes)) < np.array(sizes)[:, None]  # [H, W]
        self.register_buffer("places", torch.from_numpy(np.flatnonzero(inside)), persistent=False)

    def forward(
        self,
        logits: Tensor,
        masks: Tensor,
        actions: Tensor,
        relevant: Tensor,
        floor: float,
        mass: float = MAX_FLOOR_MASS,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and normalized entropies `[N, H]` of `actions [N, H]`, 0 where not `relevant [N, H]`, given
        flat `logits [N, A]` and flat `masks [N, A]`."""
        padded, legal = (
            t.new_zeros(len(t), self.shape[0] * self.shape[1]).index_copy(1, self.places, t).view(len(t), *self.shape)
            for t in (logits, masks)
        )
        legal = legal | ~relevant.unsqueeze(-1)  # without any, log-probs and gradients would be NaN
        table = masked_log_probs(padded, legal, floor, mass)
        log_probs = table.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        entropies = normalized_entropy(table, legal)
        return torch.where(relevant, log_probs, 0.0), torch.where(relevant, entropies, 0.0)


def sample_cells(mean: Tensor, log_std: Tensor, noise: Tensor, deterministic: bool | Tensor) -> tuple[Tensor, Tensor]:
    """Return the cells `[N, C]` of samples determined by uniform `noise [N, C]`, or of the means, and their log-probs.

    `deterministic` is a bool, or a tensor that broadcasts to `[N, C]`.
    """
    u = mean.double()
    if deterministic is not True:
        uniform = noise.double().clamp(TAIL, 1.0 - TAIL)
        drawn = u + log_std.double().exp() * sqrt(2.0) * torch.erfinv(2.0 * uniform - 1.0)
        u = torch.where(deterministic, u, drawn) if isinstance(deterministic, Tensor) else drawn
    cells = ((u + LARGEST) / CELL_WIDTH).round().clamp(0, CELLS - 1).long()
    return cells, cell_log_prob(cells, mean, log_std)


def cell_log_prob(cells: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-probs `[N, C]` of cells; all arguments are `[N, C]`."""
    u = (cells.double() * CELL_WIDTH - LARGEST).to(mean.dtype)
    z = (u - mean) * (-log_std).exp()
    return -0.5 * z.square() - log_std - 0.5 * log(2.0 * pi) + log(CELL_WIDTH)


def gaussian_entropy(mean: Tensor, log_std: Tensor, squashed: Tensor, quadrature: Tensor) -> Tensor:
    """Return differential entropies `[N, C]` in nats, of u, or of tanh(u) where `squashed [C]`.

    That of tanh(u) is that of u plus E[log(1 - tanh(u)^2)], by Gauss-Hermite `quadrature [2, 32]`.
    """
    gaussian = log_std + 0.5 * log(2.0 * pi * e)
    points, weights = quadrature.to(mean.dtype)
    u = mean.unsqueeze(-1) + sqrt(2.0) * log_std.exp().unsqueeze(-1) * points
    log_det = 2.0 * (log(2.0) - u - F.softplus(-2.0 * u))
    return gaussian + torch.where(squashed, (log_det * weights).sum(-1) / sqrt(pi), 0.0)


def has_median(spaces: Spaces) -> bool:
    """Return whether the first op is WAIT. In other spaces, deterministic policies take the most likely choices."""
    return spaces.action.heads[0].choices[0] == Op.WAIT.name


def median_noise(hazard: NDArray[np.float64], heads: int) -> NDArray[np.float64]:
    """Return the noise `[N, H]` that selects the median decisions.

    `hazard [N]` is the cumulative hazard of acting: minus the log of the probability, in nats, that the policy would
    have waited at all steps since it last acted. See `next_hazard`.
    """
    noise = np.full((len(hazard), heads), MEDIAN)
    noise[:, 0] = np.minimum(MEDIAN * np.exp(hazard), BELOW_ONE)  # WAIT if P(still waiting) exceeds a half
    return noise


def next_hazard(
    hazard: NDArray[np.float64], actions: NDArray[np.int64], log_probs: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the cumulative hazard `[N]` after `actions [N, H]`, which had these `log_probs [N, H]`; 0 after an op
    other than WAIT."""
    # NumPy compares with an enumeration's member slowly, and with its number at once.
    return np.where(actions[:, 0] == int(Op.WAIT), hazard - log_probs[:, 0], 0.0)
