"""Targets of an update: advantages and returns, from one pass with the weights before the update."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.normalizer import Rescaling, ValueNormalizer
from learner.config import LearnerConfig
from learner.ppo.batch import Batch
from learner.ppo.gae import gae, head_advantages, leave_one_out, normalize

WEIGHT_LIMIT = 2.0  # of the decoupled objective's importance weight


class Estimate(NamedTuple):
    """What N steps are worth, in the order of the batch."""

    advantages: Tensor  # [N, H] normalized; [N, 1] with one ratio for all heads
    returns: Tensor  # [N] in units of the return
    values: Tensor  # [N] proximal, in units of the return


class Targets(NamedTuple):
    """Targets of N steps, in the order of the batch."""

    advantages: Tensor  # [N, H] normalized; [N, 1] with one ratio for all heads
    returns: Tensor  # [N] in the critic's new units
    proximal_values: Tensor  # [N] in the critic's new units, as its rescaled output layer gives them
    proximal_log_probs: Tensor  # [N, H]
    behaviour_log_probs: Tensor  # [N, H]
    counted: Tensor  # [N, H] relevant and unforced
    unforced: Tensor  # [N]


@torch.no_grad()
def estimate_advantages(proximal: Evaluation, batch: Batch, scale: ValueNormalizer, config: LearnerConfig) -> Estimate:
    """Compute advantages and returns from the evaluation of the batch; `scale` is that of the critic before it."""
    # In units of the return. The two are equal if the critic is V.
    values, baseline = (scale.denormalize(v.float()) for v in (proximal.values, proximal.baseline_values))
    rewards, valid = batch.to_rows(batch.rewards), batch.valid
    padded = gae(
        rewards, batch.to_rows(values), valid, batch.terminated, batch.bootstrap_value, config.gamma, config.gae_lambda
    )
    joint = leave_one_out(padded.advantages, valid, batch.seed_index) if config.leave_one_out else padded.advantages
    heads = 1 if config.ratio == "joint" else batch.log_probs.shape[1]
    advantages = normalize(head_advantages(batch.from_rows(joint), values, baseline, heads), ~batch.forced)
    if config.objective == "decoupled":
        weight = (proximal.log_probs - batch.log_probs).sum(-1).exp().clamp(max=WEIGHT_LIMIT)
        advantages = advantages * weight[:, None]
    return Estimate(advantages, batch.from_rows(padded.returns), values)


@torch.no_grad()
def make_targets(
    network: FactoredRecurrentActorCritic, proximal: Evaluation, batch: Batch, estimate: Estimate, rescaling: Rescaling
) -> Targets:
    """Return the targets in the units of the critic after the batch, whose value scale has been updated with the
    estimated returns; that returned the rescaling of its outputs."""
    unforced = ~batch.forced
    return Targets(
        advantages=estimate.advantages,
        returns=network.value_normalizer.normalize(estimate.returns),
        proximal_values=rescaling(proximal.values.float()),
        proximal_log_probs=proximal.log_probs,
        behaviour_log_probs=batch.log_probs,
        counted=network.counted[batch.actions[:, 0]] & unforced[:, None],
        unforced=unforced,
    )
