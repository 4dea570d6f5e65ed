"""Generalised advantage estimation (Schulman et al., 2016), one episode per row, as one matrix product.

delta_t = r_t + gamma V_{t+1} - V_t and A_t = sum_k (gamma lambda)^k delta_{t+k}. The value after the last step is 0
where the episode terminated and the bootstrap value where it was truncated; nothing crosses the end of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    advantages: Tensor  # [E, T], 0 at padding
    returns: Tensor  # [E, T] lambda-returns, the critic's targets; 0 at padding


def gae(
    rewards: Tensor,
    values: Tensor,
    valid: Tensor,
    terminated: Tensor,
    bootstrap_value: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """`rewards`, `values` (denormalised), `valid`: `[E, T]`, valid a prefix; `terminated`, `bootstrap_value`: `[E]`."""
    steps = rewards.shape[1]
    rewards, values = rewards.masked_fill(~valid, 0.0), values.masked_fill(~valid, 0.0)
    after_last = torch.where(terminated, torch.zeros_like(bootstrap_value), bootstrap_value)
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    last = valid & ~torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
    following = torch.where(last, after_last[:, None], following)
    delta = (rewards + gamma * following - values).masked_fill(~valid, 0.0)
    lag = torch.arange(steps, device=delta.device)
    age = (lag[:, None] - lag[None, :]).to(delta.dtype)  # [source, target]: source - target
    decay = torch.where(age >= 0, torch.as_tensor(gamma * gae_lambda, dtype=delta.dtype) ** age.clamp(min=0), 0.0)
    advantages = (delta @ decay).masked_fill(~valid, 0.0)
    return Advantages(advantages, (advantages + values).masked_fill(~valid, 0.0))


def normalise(advantages: Tensor, counted: Tensor) -> Tensor:
    """Zero mean and unit deviation over counted entries; without spread only centred, a single one is kept."""
    chosen = advantages[counted]
    if chosen.numel() <= 1:
        return torch.zeros_like(advantages) if chosen.numel() == 0 else advantages
    deviation = chosen.std(unbiased=False)
    scale = torch.where(deviation > 1e-8, deviation, torch.ones_like(deviation))
    return (advantages - chosen.mean()) / scale
