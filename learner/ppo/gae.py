"""Generalized advantage estimation (Schulman et al., 2016), one episode per row, by doubling (Hillis and Steele, 1986).

delta_t = r_t + gamma V_{t+1} - V_t and A_t = sum_k (gamma lambda)^k delta_{t+k}. The value after the last step is 0
if the episode terminated and the bootstrap value if it was truncated; nothing crosses the end of a row.
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
    """Compute advantages and returns. `rewards`, `values` (denormalized) and `valid` (a prefix of each row) are
    `[E, T]`; `terminated` and `bootstrap_value` are `[E]`. Padded entries are never read."""
    steps = rewards.shape[1]
    rewards, values = rewards.masked_fill(~valid, 0.0), values.masked_fill(~valid, 0.0)
    after_last = torch.where(terminated, torch.zeros_like(bootstrap_value), bootstrap_value)
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    last = valid & ~torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
    following = torch.where(last, after_last[:, None], following)
    delta = (rewards + gamma * following - values).masked_fill(~valid, 0.0)
    advantages, reach = delta, 1
    while reach < steps:  # a sum over `reach` steps becomes one over twice as many
        later = advantages[:, reach:] * (gamma * gae_lambda) ** reach
        advantages = torch.cat([advantages[:, :-reach] + later, advantages[:, -reach:]], 1)
        reach *= 2
    advantages = advantages.masked_fill(~valid, 0.0)
    return Advantages(advantages, (advantages + values).masked_fill(~valid, 0.0))


def head_advantages(advantages: Tensor, values: Tensor, baseline_values: Tensor, heads: int) -> Tensor:
    """Return `[N, heads]` advantages from `[N]` each: A + value - baseline for the op head, A for the other heads.

    Where the critic is Q(s, op), A has an action-dependent baseline, which would erase the op head's own gradient;
    with the value of a state alone, value and baseline are equal and all heads share A.
    """
    return torch.stack([advantages + (values - baseline_values), *[advantages] * (heads - 1)], -1)


def normalize(advantages: Tensor, counted: Tensor) -> Tensor:
    """Subtract from each column of `[N, H]` its mean over the counted steps `[N]`, and divide all by the standard
    deviation of the first column.

    Advantages without spread are only centered; those of a single counted step are returned unchanged.
    """
    count = counted.sum()
    inside = counted[:, None]
    mean = advantages.masked_fill(~inside, 0.0).sum(0) / count.clamp(min=1)
    centered = advantages - mean
    deviation = (centered[:, :1].square().masked_fill(~inside, 0.0).sum() / count.clamp(min=1)).sqrt()
    scaled = centered / torch.where(deviation > 1e-8, deviation, torch.ones_like(deviation))
    return torch.where(count > 1, scaled, torch.where(count == 1, advantages, torch.zeros_like(advantages)))


def leave_one_out(advantages: Tensor, valid: Tensor, seed_index: Tensor) -> Tensor:
    """Subtract from each advantage the mean at the same step of the other episodes with the same `seed_index` `[E]`;
    where there are none, nothing.

    A leave-one-out baseline (Kool et al., 2019) on top of the critic: episodes of one seed share data, host and
    minibatches, so most of what the critic fails to predict is the same in all of them. The mean of the others does not
    depend on an episode's own actions, so the policy gradient stays unbiased. `advantages` and `valid` (a prefix of
    each row) are `[E, T]`. Padded entries are never read; they become 0.
    """
    others = (seed_index[:, None] == seed_index).to(advantages.dtype).fill_diagonal_(0.0)  # [E, E]
    advantages = advantages.masked_fill(~valid, 0.0)
    total, count = others @ advantages, others @ valid.to(advantages.dtype)
    return (advantages - total / count.clamp(min=1.0)).masked_fill(~valid, 0.0)
