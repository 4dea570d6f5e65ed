"""BatchNorm without a module: where its statistics come from is an argument of a host's forward pass.

A `Normalise` takes a norm's name, `h [M, C, *space]` (environments folded into C), gain and bias. Running statistics
are state that no optimizer sees; the training loop's main pass alone writes them (Ioffe & Szegedy, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MOMENTUM, EPS = 0.1, 1e-5
CALIBRATION_ROWS = 128

Normalise = Callable[[str, Tensor, Tensor, Tensor], Tensor]


class Moments(NamedTuple):
    mean: Tensor  # [C] or, for a stack, [E, C]
    var: Tensor

    @classmethod
    def fresh(cls, *shape: int, dtype: torch.dtype, device: torch.device | None = None) -> Moments:
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.ones(shape, dtype=dtype, device=device))


Running = Mapping[str, Moments]  # by norm


def batch_statistics(running: Running | None = None) -> Normalise:
    """Training mode; `running` is moved towards each batch where it is given."""

    def normalise(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        mean, var = (None, None) if running is None else (t.view(-1) for t in running[name])
        return F.batch_norm(h, mean, var, gain.flatten(), bias.flatten(), True, MOMENTUM, EPS)

    return normalise


def running_statistics(running: Running) -> Normalise:
    """Evaluation mode."""

    def normalise(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        mean, var = (t.reshape(-1) for t in running[name])
        return F.batch_norm(h, mean, var, gain.flatten(), bias.flatten(), False, MOMENTUM, EPS)

    return normalise


def recorded_statistics(into: dict[str, Moments]) -> Normalise:
    """Training mode that keeps each norm's batch statistics, to evaluate other rows of the same configuration with."""

    def normalise(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        var, mean = torch.var_mean(h, (0, *range(2, h.dim())), correction=0)
        into[name] = Moments(mean, var)
        return F.batch_norm(h, mean, var, gain.flatten(), bias.flatten(), False, MOMENTUM, EPS)

    return normalise


def calibrated_statistics(rows: int, leading: int) -> Normalise:
    """`recorded_statistics` in one pass for many configurations: of each `rows` rows the first `leading` calibrate."""

    def normalise(name: str, h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        parts = h.reshape(-1, rows, *h.shape[1:])
        var, mean = torch.var_mean(parts[:, :leading], (1, *range(3, parts.dim())), correction=0, keepdim=True)
        tail = (-1, *(1,) * (h.dim() - 2))
        scale = gain.reshape(tail) * torch.rsqrt(var + EPS)
        return (parts * scale + (bias.reshape(tail) - mean * scale)).flatten(0, 1)

    return normalise
