"""A baseline from peers: episodes with the same seed, and thus the same task, data, host and minibatches.

Most of what the critic cannot predict, it cannot predict in any of them. The mean advantage of an episode's peers at
the same step does not depend on the actions of this episode, so subtracting it leaves the policy gradient unbiased: a
leave-one-out baseline (Kool et al., 2019) on top of the critic.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mean_peers(group: Tensor) -> Tensor:
    """Return how many peers an episode has, mean over the episodes of `group` `[E]`."""
    return (group[:, None] == group).sum(1).double().mean() - 1.0


def subtract_peers(advantages: Tensor, valid: Tensor, group: Tensor) -> Tensor:
    """Subtract from each advantage the mean of its peers' at the same step; where it has none, nothing.

    `advantages` and `valid`, a prefix of each row, are `[E, T]`; episodes are peers if their `group` `[E]` is the same.
    """
    own = group[:, None] == group
    peers = (own & ~torch.eye(len(group), dtype=torch.bool, device=group.device)).to(advantages.dtype)  # [E, E]
    present = valid.to(advantages.dtype)
    total, count = peers @ (advantages * present), peers @ present
    return (advantages - total / count.clamp(min=1)).masked_fill(~valid, 0.0)
