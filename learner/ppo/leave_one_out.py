"""A leave-one-out baseline (Kool et al., 2019) on top of the critic, from episodes with the same task and seed.

They share data, host and minibatches, so most of what the critic fails to predict is the same in all of them. The mean
advantage of the others at the same step does not depend on an episode's own actions, so subtracting it leaves the
policy gradient unbiased.
"""

from __future__ import annotations

from torch import Tensor


def others_per_episode(seed_index: Tensor) -> Tensor:
    """Return how many other episodes have the same seed, mean over the episodes of `seed_index` `[E]`."""
    return (seed_index[:, None] == seed_index).sum(1).double().mean() - 1.0


def leave_one_out(advantages: Tensor, valid: Tensor, seed_index: Tensor) -> Tensor:
    """Subtract from each advantage the mean at the same step of the other episodes with the same `seed_index` `[E]`;
    where there are none, nothing.

    `advantages` and `valid` (a prefix of each row) are `[E, T]`. Padded entries are never read; they become 0.
    """
    others = (seed_index[:, None] == seed_index).to(advantages.dtype).fill_diagonal_(0.0)  # [E, E]
    advantages = advantages.masked_fill(~valid, 0.0)
    total, count = others @ advantages, others @ valid.to(advantages.dtype)
    return (advantages - total / count.clamp(min=1.0)).masked_fill(~valid, 0.0)
