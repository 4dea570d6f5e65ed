"""Targets of an update: advantages and returns, from one pass with the weights before the update."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from learner.config import LearnerConfig
from learner.ppo.batch import Batch
from learner.ppo.gae import gae, head_advantages, leave_one_out, normalize

WEIGHT_LIMIT = 2.0  # of the decoupled objective's importance weight


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
def make_targets(
    network: FactoredRecurrentActorCritic, proximal: Evaluation, batch: Batch, config: LearnerConfig
) -> tuple[Targets, Tensor]:
    """Compute targets from the evaluation of the batch. The critic's scale is updated with the returns, and targets are
    in its new units. Returns the proximal values `[N]` as well, in units of the return."""
    scale, unforced = network.value_normalizer, ~batch.forced
    # In units of the return. The two are equal if the critic is V.
    values, baseline = (scale.denormalize(v.float()) for v in (proximal.values, proximal.baseline_values))
    rewards, valid = batch.to_rows(batch.rewards), batch.valid
    padded = gae(
        rewards, batch.to_rows(values), valid, batch.terminated, batch.bootstrap_value, config.gamma, config.gae_lambda
    )
    joint = leave_one_out(padded.advantages, valid, batch.seed_index) if config.leave_one_out else padded.advantages
    heads = 1 if config.ratio == "joint" else batch.log_probs.shape[1]
    advantages = normalize(head_advantages(batch.from_rows(joint), values, baseline, heads), unforced)
    if config.objective == "decoupled":
        weight = (proximal.log_probs - batch.log_probs).sum(-1).exp().clamp(max=WEIGHT_LIMIT)
        advantages = advantages * weight[:, None]
    returns = batch.from_rows(padded.returns)
    rescaling = scale.update(returns, network.value_output)
    targets = Targets(
        advantages=advantages,
        returns=scale.normalize(returns),
        proximal_values=rescaling(proximal.values.float()),
        proximal_log_probs=proximal.log_probs,
        behaviour_log_probs=batch.log_probs,
        counted=network.counted[batch.actions[:, 0]] & unforced[:, None],
        unforced=unforced,
    )
    return targets, values
