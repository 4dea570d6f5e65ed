"""BatchNorm without a module: where its statistics come from is an argument of a host's forward pass.

A `Normalize` takes a norm's name, a plane `h [M, C, height, width]` (environments folded into C), gain and bias.
Running statistics are state that no optimizer sees; the training loop's main pass alone writes them (Ioffe & Szegedy,
2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.layers.convolution import in_order

MOMENTUM, EPS = 0.1, 1e-5
CALIBRATION_ROWS = 128
LANES = 16
"""Channels beyond a multiple of it are computed one by one, with other roundings: a pass over a changing number of
environments makes it a multiple."""

Normalize = Callable[[str, Tensor, Tensor, Tensor], Tensor]


class Moments(NamedTuple):
    mean: Tensor  # [C] or, for a stack, [E, C]
    var: Tensor

    @classmethod
    def fresh(cls, *shape: int, dtype: torch.dtype, device: torch.device | None = None) -> Moments:
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.ones(shape, dtype=dtype, device=device))


Running = Mapping[str, Moments]  # by norm


def batch_statistics(running: Running | None = None) -> Normalize:
    """Training mode; `running` is moved towards each batch where it is given."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        mean, var = (None, None) if running is None else (t.view(-1) for t in running[name])
        gain, bias, more = gain.flatten(), bias.flatten(), -h.shape[1] % LANES
        if more == 0 or running is not None:
            return F.batch_norm(h, mean, var, gain, bias, True, MOMENTUM, EPS)
        padded = F.pad(h, (0, 0) * (h.dim() - 2) + (0, more))
        out = F.batch_norm(padded, None, None, F.pad(gain, (0, more)), F.pad(bias, (0, more)), True, MOMENTUM, EPS)
        return in_order(out)[:, : len(gain)]

    return normalize


def running_statistics(running: Running) -> Normalize:
    """Evaluation mode."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        mean, var = (t.reshape(-1) for t in running[name])
        return F.batch_norm(h, mean, var, gain.flatten(), bias.flatten(), False, MOMENTUM, EPS)

    return normalize


def recorded_statistics(into: dict[str, Moments]) -> Normalize:
    """Training mode that keeps each norm's batch statistics, to evaluate other rows of the same configuration with."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        mean, var = into[name] = Moments(*(t.flatten() for t in _moments(h)))
        return F.batch_norm(h, mean, var, gain.flatten(), bias.flatten(), False, MOMENTUM, EPS)

    return normalize


Affine = tuple[Tensor, Tensor]  # (scale, shift) of one configuration, `[1, C, 1, ...]` each


def calibrating(into: dict[str, list[Affine]], rows: int) -> Normalize:
    """`recorded_statistics` for many configurations, each in `rows` consecutive rows; they land in `into` by norm."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        column = (1, -1, *(1,) * (h.dim() - 2))
        into[name] = []
        for part in torch.split(h, rows):
            mean, var = _moments(part)
            scale = gain.reshape(column) * torch.rsqrt(var + EPS)
            into[name].append((scale, bias.reshape(column) - mean * scale))
        return calibrated(into, rows)(name, h, gain, bias)

    return normalize


def calibrated(by_norm: Mapping[str, list[Affine]], rows: int) -> Normalize:
    """Other rows of the same configurations, in the same order, by what `calibrating` found."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        out = torch.empty_like(h)
        parts = zip(by_norm[name], torch.split(h, rows), torch.split(out, rows), strict=True)
        for (scale, shift), part, target in parts:
            torch.addcmul(shift, part, scale, out=target)
        return out

    return normalize


def _moments(h: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, `[1, C, 1, ...]`. One after the other: `var_mean` is twenty times slower."""
    batch = (0, *range(2, h.dim()))
    mean = h.mean(batch, keepdim=True)
    return mean, (h - mean).square().mean(batch, keepdim=True)
