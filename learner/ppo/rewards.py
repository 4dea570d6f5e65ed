"""Clipping of extreme rewards, before anything is computed from them."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.policy.normalizer import MIN_STD, ValueNormalizer
from learner.ppo.batch import Batch

REWARD_CLIP = 100.0
"""Rewards are clipped to this many standard deviations of the return or, if that is more, to this many times the
largest reward of a typical episode of the batch. A lasting change of scale is followed within a few updates."""
LARGEST = 1e15  # limit without a reference; its square is finite in float32
TYPICAL = 0.75  # share of the batch's episodes, by their largest reward


@torch.no_grad()
def clip_rewards(batch: Batch, scale: ValueNormalizer) -> tuple[Batch, Tensor]:
    """Clip the rewards of the batch to the limit. Returns the batch, and how many rewards exceeded the limit.

    Without this, a single reward of 1e6 among returns of about 1 would set the scale of the critic for hundreds of
    updates.
    """
    size = batch.rewards.abs()
    largest = batch.to_rows(size).amax(1).sort().values
    typical = largest[int(TYPICAL * (len(largest) - 1))].double()
    fitted = (scale.updates > 0) & (scale.std > MIN_STD)  # all-zero returns give no scale
    reference = torch.maximum(torch.where(fitted, scale.std, 0.0), typical)
    limit = torch.where(reference > 0, REWARD_CLIP * reference, LARGEST).clamp(max=LARGEST).to(size.dtype)
    return batch._replace(rewards=batch.rewards.clamp(-limit, limit)), (size > limit).sum()
