"""Running statistics that travel with the weights: of observations, and of returns (PopArt)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

OBSERVATION_CLIP = 100.0
"""Observations enter the running statistics at most this many standard deviations from their mean."""
FIRST_MOVE = 10.0  # taken for the deviation of a feature that was constant so far


class ObservationNormaliser(nn.Module):
    """(x - mean) / std per feature, clipped; slots share their statistics. Updated by the learner alone.

    Welford's parallel form (Chan et al., 1979); the count saturates, so that old data fades. Values far outside are
    winsorised before they enter the statistics: they would widen them for as long as the count remembers.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int, clip: float = 5.0, max_count: float = 1e6) -> None:
        super().__init__()
        self.clip = clip
        self.max_count = max_count
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * self.scale()).clamp(-self.clip, self.clip).to(x.dtype)

    def scale(self) -> Tensor:
        """`[size]`, one over the deviation."""
        return (self.variance + 1e-4).rsqrt()

    @torch.no_grad()
    def update(self, x: Tensor) -> Tensor:
        """Take in `x [N, size]`, valid steps only. Returns how many of its entries were winsorised."""
        if x.shape[0] == 0:
            return torch.zeros((), dtype=torch.long, device=x.device)
        x, outside = self._winsorised(x.double())
        count, mean, variance = x.shape[0], x.mean(0), x.var(0, unbiased=False)
        total = self.count + count
        delta = mean - self.mean
        new = (self.variance * self.count + variance * count + delta.square() * self.count * count / total) / total
        self.variance.copy_(new)
        self.mean.add_(delta * count / total)
        self.count.copy_(total.clamp(max=self.max_count))
        return outside

    def _winsorised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`x`, entries further from the centre than the limit moved there, and how many these are.

        The first batch is compared with itself: with its median, and half of the distance from it that one entry in
        twenty exceeds, which is about a standard deviation where entries are normal.
        """
        if bool(self.count > 0):
            centre, deviation = self.mean, torch.where(self.variance > 0, self.variance + 1e-4, 0.0).sqrt()
        else:
            centre = x.median(0).values
            deviation = (x - centre).abs().sort(0).values[int(0.95 * (len(x) - 1))] / 2
        # A feature that never moved says nothing of how far it may.
        limit = OBSERVATION_CLIP * torch.where(deviation > 0, deviation, FIRST_MOVE)
        outside = ((x - centre).abs() > limit).sum()
        return torch.clamp(x, centre - limit, centre + limit), outside


MIN_SPREAD = 0.05
"""Least deviation over the root mean square: returns that hardly differ, as of a solved task, are not blown up."""
TINY = 1e-6  # least deviation of returns that are all about 0


class Rescaling(NamedTuple):
    """What an update of the value scale did to the critic's normalised outputs: new = factor * old + shift."""

    factor: Tensor  # [] float64
    shift: Tensor  # [] float64

    def __call__(self, values: Tensor) -> Tensor:
        return (self.factor * values + self.shift).to(values.dtype)


class ValueNormaliser(nn.Module):
    """The scale of the critic, fitted to returns once per batch.

    With `popart` (van Hasselt et al., 2016) the output layer is rescaled in place when the statistics move, so that
    denormalised values do not; without it the mean stays 0 and values are only divided by a running deviation.
    The first update sets the layer to zero instead: the statistics before it are placeholders, and what an untrained
    critic said in their units would be |mean| / std deviations away from its targets. It begins at the mean.
    """

    mean: Tensor
    std: Tensor
    second_moment: Tensor
    updates: Tensor

    def __init__(self, popart: bool, beta: float = 0.1) -> None:
        super().__init__()
        self.popart = popart
        self.beta = beta
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(2, dtype=torch.float64))  # of the returns and of their squares
        self.register_buffer("updates", torch.zeros((), dtype=torch.float64))

    moments: Tensor

    def normalise(self, values: Tensor) -> Tensor:
        return ((values - self.mean) / self.std).to(values.dtype)

    def denormalise(self, values: Tensor) -> Tensor:
        return (values * self.std + self.mean).to(values.dtype)

    @torch.no_grad()
    def update(self, returns: Tensor, output: nn.Linear) -> Rescaling:
        """Fit to `returns [N]` and, with PopArt, rescale `output` (the critic's last layer) to match.

        Returns what became of the critic's normalised outputs.
        """
        one, zero = torch.ones_like(self.std), torch.zeros_like(self.mean)
        if returns.numel() == 0:
            return Rescaling(one, zero)
        returns = returns.double()
        fitted = self.updates > 0
        self.updates += 1
        # An average over all updates at first, an exponential one from the 1/beta-th on.
        step = torch.clamp(1.0 / self.updates, min=self.beta)
        batch = torch.stack([returns.mean(), returns.square().mean()])
        self.moments += step * (batch - self.moments)
        mean, std = self.mean.clone(), self.std.clone()
        deviation = (self.moments[1] - self.moments[0].square()).clamp(min=0.0).sqrt()
        least = (MIN_SPREAD * self.moments[1].sqrt()).clamp(min=TINY)
        self.std.copy_(torch.maximum(deviation, least))
        if not self.popart:
            return Rescaling(one, zero)
        self.mean.copy_(self.moments[0])
        factor = torch.where(fitted, std / self.std, zero)
        shift = torch.where(fitted, (mean - self.mean) / self.std, zero)
        output.weight.mul_(factor.to(output.weight.dtype))
        output.bias.copy_(factor * output.bias + shift)
        return Rescaling(factor, shift)
