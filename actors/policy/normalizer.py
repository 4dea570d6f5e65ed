"""Running normalization of observations and of value targets (PopArt); the statistics are part of the weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

CLIP = 5.0
"""Standard deviations to which normalized observations are clipped."""
MAX_COUNT = 1e6  # steps
OBSERVATION_CLIP = 100.0
"""Observations are winsorized to this many standard deviations before they enter the running statistics."""
CONSTANT_FEATURE_STD = 10.0  # assumed standard deviation of a feature that has been constant so far


class ObservationNormalizer(nn.Module):
    """Computes (x - mean) / std per feature, clipped. Only the learner updates the statistics; all slots share them.

    The update is Welford's algorithm for batches (Chan et al., 1979). The count saturates at `MAX_COUNT`, so that old
    data is forgotten exponentially. Outliers are winsorized before they enter the statistics, where they would
    otherwise inflate the variance for a long time.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * self.scale()).clamp(-CLIP, CLIP).to(x.dtype)

    def scale(self) -> Tensor:
        """Return `[size]`, the reciprocal of the standard deviation."""
        return (self.variance + 1e-4).rsqrt()

    @torch.no_grad()
    def update(self, x: Tensor) -> Tensor:
        """Update the statistics with `x [N, size]`, valid steps only. Returns the number of winsorized entries."""
        if x.shape[0] == 0:
            return torch.zeros((), dtype=torch.long, device=x.device)
        x, outliers = self._winsorise(x.double())
        count, mean, variance = x.shape[0], x.mean(0), x.var(0, unbiased=False)
        total = self.count + count
        delta = mean - self.mean
        new = (self.variance * self.count + variance * count + delta.square() * self.count * count / total) / total
        self.variance.copy_(new)
        self.mean.add_(delta * count / total)
        self.count.copy_(total.clamp(max=MAX_COUNT))
        return outliers

    def _winsorise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Clamp `x` to `OBSERVATION_CLIP` standard deviations around the center, and count the clamped entries.

        Center and deviation are the running ones. For the first batch they are its median, and half of the 95th
        percentile of the distances from it, which is about one standard deviation of normally distributed entries.
        """
        if bool(self.count > 0):
            center, deviation = self.mean, torch.where(self.variance > 0, self.variance + 1e-4, 0.0).sqrt()
        else:
            center = x.median(0).values
            deviation = (x - center).abs().sort(0).values[int(0.95 * (len(x) - 1))] / 2
        # The scale of a feature that has been constant is unknown.
        limit = OBSERVATION_CLIP * torch.where(deviation > 0, deviation, CONSTANT_FEATURE_STD)
        outliers = ((x - center).abs() > limit).sum()
        return torch.clamp(x, center - limit, center + limit), outliers


MIN_STEP = 0.1  # of the moving averages
MIN_RELATIVE_STD = 0.05
"""Lower bound of std / root mean square, so that almost equal returns, as of a solved task, are not amplified."""
MIN_STD = 1e-6


class Rescaling(NamedTuple):
    """Affine map of the critic's normalized outputs caused by new value statistics: new = factor * old + shift."""

    factor: Tensor  # [] float64
    shift: Tensor  # [] float64

    def __call__(self, values: Tensor) -> Tensor:
        return (self.factor * values + self.shift).to(values.dtype)


class ValueNormalizer(nn.Module):
    """Normalizes value targets with running statistics of the returns, updated once per batch.

    With `popart` (van Hasselt et al., 2016) the output layer is rescaled in place when the statistics change, so that
    denormalized values are preserved. Without it the mean stays 0 and values are only divided by a running standard
    deviation. The first update zeroes the layer instead, so that the critic starts at the mean of the returns: the
    statistics before it are placeholders, and preserving an untrained critic's outputs in their units would put it
    |mean| / std deviations away from its targets.
    """

    mean: Tensor
    std: Tensor
    moments: Tensor  # [2] of the returns and of their squares
    updates: Tensor

    def __init__(self, popart: bool) -> None:
        super().__init__()
        self.popart = popart
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.float64))

    def normalize(self, values: Tensor) -> Tensor:
        return ((values - self.mean) / self.std).to(values.dtype)

    def denormalize(self, values: Tensor) -> Tensor:
        return (values * self.std + self.mean).to(values.dtype)

    @torch.no_grad()
    def update(self, returns: Tensor, output: nn.Linear) -> Rescaling:
        """Update the statistics with `returns [N]` and, with PopArt, rescale `output`, the critic's output layer.

        Returns the map from old to new normalized outputs.
        """
        one, zero = torch.ones_like(self.std), torch.zeros_like(self.mean)
        if returns.numel() == 0:
            return Rescaling(one, zero)
        returns = returns.double()
        fitted = self.updates > 0
        self.updates += 1
        # The mean over all updates at first, an exponential moving average from update 1 / MIN_STEP on.
        step = torch.clamp(1.0 / self.updates, min=MIN_STEP)
        batch = torch.stack([returns.mean(), returns.square().mean()])
        self.moments += step * (batch - self.moments)
        mean, std = self.mean.clone(), self.std.clone()
        deviation = (self.moments[1] - self.moments[0].square()).clamp(min=0.0).sqrt()
        min_std = (MIN_RELATIVE_STD * self.moments[1].sqrt()).clamp(min=MIN_STD)
        self.std.copy_(torch.maximum(deviation, min_std))
        if not self.popart:
            return Rescaling(one, zero)
        self.mean.copy_(self.moments[0])
        factor = torch.where(fitted, std / self.std, zero)
        shift = torch.where(fitted, (mean - self.mean) / self.std, zero)
        output.weight.mul_(factor.to(output.weight.dtype))
        output.bias.copy_(factor * output.bias + shift)
        return Rescaling(factor, shift)
