"""Clipping of extreme rewards, values and log-probs, before anything is computed from them.

Without this, a single reward or value of 1e6 among returns of about 1 would set the scale of the critic for hundreds of
updates, and a single log-prob of -1e9 would make the gradients of its minibatch infinite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actors.policy.network import Evaluation
from actors.policy.normalizer import MIN_STD, ValueNormalizer
from learner.ppo.batch import Batch

CLIP = 100.0
"""Rewards are clipped to this many standard deviations of the return or, if that is more, to this many times the
largest reward of a typical episode of the batch. A lasting change of scale is followed within a few updates. Values
are clipped to the same distance from the mean return."""
LARGEST = 1e15  # limit without a reference; its square is finite in float32
TYPICAL = 0.75  # share of the batch's episodes, by their largest reward
LOG_RATIO = 20.0
"""Largest logarithm of the ratio between the probabilities of an action now and when it was chosen: e^20 is finite in
float32, as is its square, and far outside the clip of the objective."""


@torch.no_grad()
def clip_rewards(batch: Batch, scale: ValueNormalizer) -> tuple[Batch, dict[str, Tensor]]:
    """Clip the rewards and the bootstrap values of the batch. Returns the batch, and how many were clipped."""
    size = batch.rewards.abs()
    largest = batch.to_rows(size).amax(1).sort().values
    typical = largest[int(TYPICAL * (len(largest) - 1))].double()
    fitted = (scale.updates > 0) & (scale.std > MIN_STD)  # all-zero returns give no scale
    reference = torch.maximum(torch.where(fitted, scale.std, 0.0), typical)
    limit = torch.where(reference > 0, CLIP * reference, LARGEST).clamp(max=LARGEST).to(size.dtype)
    mean = torch.where(fitted, scale.mean, 0.0).to(size.dtype)
    bootstrap = batch.bootstrap_value.clamp(mean - limit, mean + limit)
    clipped = {
        "clipped_rewards": (size > limit).sum(),
        "clipped_values": ((bootstrap != batch.bootstrap_value) & ~batch.terminated).sum(),
    }
    return batch._replace(rewards=batch.rewards.clamp(-limit, limit), bootstrap_value=bootstrap), clipped


@torch.no_grad()
def clip_values(evaluation: Evaluation) -> tuple[Evaluation, Tensor]:
    """Clip the critic's normalized values, which depend on what actors sent. Returns the evaluation, and how many
    values were clipped."""
    values, baselines = (v.clamp(-CLIP, CLIP) for v in (evaluation.values, evaluation.baseline_values))
    return evaluation._replace(values=values, baseline_values=baselines), (values != evaluation.values).sum()


@torch.no_grad()
def bound_ratios(batch: Batch, log_probs: Tensor) -> tuple[Batch, Tensor]:
    """Raise the log-probs of chosen actions so that the ratio to `log_probs [N, H]` now is at most e^`LOG_RATIO` for
    each head and for all heads together. Returns the batch, and for how many steps this was done."""
    raised = torch.maximum(batch.log_probs, log_probs - LOG_RATIO)
    excess = ((log_probs - raised).sum(-1, keepdim=True) - LOG_RATIO).clamp(min=0.0)
    raised = raised + excess / raised.shape[1]
    return batch._replace(log_probs=raised), (raised != batch.log_probs).any(-1).sum()
